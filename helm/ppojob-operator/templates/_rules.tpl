{{/*
What the operator may do with jobs and what they are made of, in the namespaces that it serves.
Nothing is granted with "*"; a test holds the list against what a real run uses.
*/}}
{{- define "ppojob.rules" -}}
- apiGroups: [ppojob.dev]
  resources: [ppojobs]
  verbs:
    - get      # before what is gone is made again: the job's own deletion may have been missed
    - list     # all jobs, when the operator starts or the watch breaks off
    - watch    # wakes the job's queue
    - delete   # a finished job, when lifecycle.ttlSecondsAfterFinished is over
- apiGroups: [ppojob.dev]
  resources: [ppojobs/status]
  verbs:
    - patch    # phase, conditions and counts; and it can only grant controllers what it has itself
- apiGroups: [""]
  resources: [pods]
  verbs:
    - list     # what runs, when the operator starts or the watch breaks off
    - watch    # wakes the job when a pod becomes ready, fails or is placed
    - delete   # replaces a pod: an edited job, a failed pod, or by force one on a dead node
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: &made-and-deleted
    - get      # a name is taken: by an object of this job, or of somebody else
    - list     # what is there, when the operator starts or the watch breaks off
    - watch    # wakes the job when somebody edits or deletes one
    - create   # pods of each role and of the controller
    - patch    # gives one that differs its content again, by server-side apply
    - delete   # suspend, and the end of a job, give the pods back
- apiGroups: [""]
  resources: [configmaps]
  verbs: *made-and-deleted  # the run configuration; deleted when no pod mounts it any more
- apiGroups: [""]
  resources: [services]
  verbs: *made-and-deleted  # names of pods; deleted when a job that was edited has none of the role
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: &made
    - get      # a name is taken: by an object of this job, or of somebody else
    - list     # what is there, when the operator starts or the watch breaks off
    - watch    # wakes the job when somebody edits or deletes one
    - create   # the controller's identity; deletion is the garbage collector's
    - patch    # gives one that differs its content again, by server-side apply
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs:
    - get      # a name is taken: by an earlier job's run, perhaps
    - list     # what is there, when the operator starts or the watch breaks off
    - watch    # wakes the job when somebody deletes one
    - create   # a run's volume, where a job names its size; it is never changed or deleted
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: *made  # the controller may patch the status of its own job, and nothing else
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: *made  # only the job's own pods reach its ports
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: *made  # a drain takes one pod of a job at a time
- apiGroups: [""]
  resources: [secrets]
  verbs:
    - get      # keys in use are never replaced; by name alone, so nobody else's are ever listed
    - create   # one key pair a role
- apiGroups: [""]
  resources: [events]
  verbs:
    - create   # tells people
    - list     # why a StatefulSet makes no pods: a quota, say; asked for where pods are missing
{{- if .Values.gangs.kueue }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: *made-and-deleted  # what a queue admits; deleted with a suspended job's last pod
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs:
    - patch    # tells the queue that pods are ready, and that the job has ended
    - update   # gives quota back behind the last pod of an evicted job
{{- end }}
{{- if .Values.gangs.volcano }}
- apiGroups: [scheduling.volcano.sh]
  resources: [podgroups]
  verbs: *made-and-deleted  # what Volcano places as a whole; deleted with the job's last pod
{{- end }}
{{- if .Values.gangs.workload }}
- apiGroups: [scheduling.k8s.io]
  resources: [workloads, podgroups]
  verbs: *made-and-deleted  # what the scheduler places as a whole; deleted with the last pod
{{- end }}
{{- end -}}

{{/* What it may do in its own namespace besides. */}}
{{- define "ppojob.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs:
    - create   # the first replica of all; no name can be asked for here
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "ppojob.fullname" . }}]
  verbs:
    - get      # who leads
    - update   # takes over and renews, on condition of the version read
{{- end -}}
