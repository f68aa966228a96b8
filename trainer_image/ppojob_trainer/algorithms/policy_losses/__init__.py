"""Policy losses per token, before `aggregate` reduces them: a file each."""
