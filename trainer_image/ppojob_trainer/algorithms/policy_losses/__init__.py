"""Policy losses per token, before `aggregate`: one file each."""
