"""Policy-gradient losses of single tokens, before they are added up by `aggregate`: a file each."""
