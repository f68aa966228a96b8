{{/*
What the operator may do with jobs and what they are made of, in the namespaces that it serves.
Nothing is granted with "*"; tests hold the list against what a real run uses.
*/}}
{{- define "ppojob.rules" -}}
- apiGroups: [ppojob.dev]
  resources: [ppojobs]
  verbs:
    - get      # a job's present state, before a write that depends on it
    - list     # all jobs, when the operator starts or the watch breaks off
    - watch    # wakes the job's queue
    - delete   # a finished job, when lifecycle.ttlSecondsAfterFinished is over
- apiGroups: [ppojob.dev]
  resources: [ppojobs/status]
  verbs:
    - patch    # phase, conditions and counts; and the operator can only grant what it has itself
- apiGroups: [ppojob.dev]
  resources: [ppojobs/finalizers]
  verbs:
    - update   # owner references that block deletion, where admission guards them
- apiGroups: [apps]
  resources: [statefulsets]
  verbs:
    - list     # what is there, when the operator starts or the watch breaks off
    - watch    # wakes the job when somebody edits or deletes one
    - create   # one a role and one for the controller
    - patch    # server-side apply
    - delete   # suspend, and the end of a job, give the pods back
- apiGroups: [""]
  resources: [pods]
  verbs:
    - list     # what runs, when the operator starts or the watch breaks off
    - watch    # wakes the job when a pod becomes ready, fails or is placed
    - delete   # replaces a pod: an edited job, a failed pod, or by force one on a dead node
- apiGroups: [""]
  resources: [configmaps, services, serviceaccounts]
  verbs:
    - list     # what is there, when the operator starts or the watch breaks off
    - watch    # wakes the job when somebody edits or deletes one
    - create   # run configuration, headless services, the controller's identity
    - patch    # server-side apply
    - delete   # what a changed job no longer needs
- apiGroups: [""]
  resources: [secrets]
  verbs:
    - get      # keys in use are never replaced; by name, so those of others are never read
    - create   # one key pair a role
    - patch    # owner reference and labels, by server-side apply
    - delete   # keys of a role that a changed job no longer has
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs:
    - get      # says in a condition that a job's volume does not exist
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs:
    - list     # what is there, when the operator starts or the watch breaks off
    - watch    # wakes the job when somebody edits or deletes one
    - create   # the controller may patch the status of its own job, and nothing else
    - patch    # server-side apply
    - delete   # what a changed job no longer needs
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs:
    - list     # what is there, when the operator starts or the watch breaks off
    - watch    # wakes the job when somebody edits or deletes one
    - create   # only the job's own pods reach its ports
    - patch    # server-side apply
    - delete   # what a changed job no longer needs
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs:
    - list     # what is there, when the operator starts or the watch breaks off
    - watch    # wakes the job when somebody edits or deletes one
    - create   # a drain waits for a role's other pods
    - patch    # server-side apply
    - delete   # what a changed job no longer needs
- apiGroups: [""]
  resources: [events]
  verbs:
    - create   # tells people
    - patch    # counts the same event up instead of making another
{{- end -}}

{{/* What it may do in its own namespace besides. */}}
{{- define "ppojob.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs:
    - get      # who leads
    - create   # the first replica of all
    - update   # takes over and renews, on condition of the resource version read
{{- end -}}
