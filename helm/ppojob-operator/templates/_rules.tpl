{{/*
What the operator may do with jobs and what they are made of, in the namespaces that it serves.
Nothing is granted with "*"; a test holds the list against what a real run uses.
*/}}
{{- define "ppojob.rules" -}}
- apiGroups: [ppojob.dev]
  resources: [ppojobs]
  verbs:
    - get      # before objects are created again: whether the job still exists
    - list     # all jobs, at the start and when a watch expires
    - watch    # enqueues a changed job
    - delete   # a finished job, after lifecycle.ttlSecondsAfterFinished
- apiGroups: [ppojob.dev]
  resources: [ppojobs/status]
  verbs:
    - patch    # the status; RBAC also requires it to grant it to controllers
- apiGroups: [""]
  resources: [pods]
  verbs:
    - list     # all pods of jobs, at the start and when a watch expires
    - watch    # enqueues the job when a pod is scheduled, becomes ready or fails
    - delete   # a controller with an old configuration, a crashed pod, a pod on a lost node
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: &made-and-deleted
    - get      # if the name exists: whether it belongs to this job
    - list     # all objects of jobs, at the start and when a watch expires
    - watch    # enqueues the job when one is edited or deleted
    - create   # the objects of a job
    - patch    # server-side apply of the desired content
    - delete   # of a suspended or finished job
- apiGroups: [""]
  resources: [configmaps]
  verbs: *made-and-deleted  # run configurations; deleted when no pod mounts them
- apiGroups: [""]
  resources: [services]
  verbs: *made-and-deleted  # host names of pods; deleted when an edited job no longer has the role
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: &made
    - get      # if the name exists: whether it belongs to this job
    - list     # all objects of jobs, at the start and when a watch expires
    - watch    # enqueues the job when one is edited or deleted
    - create   # the objects of a job; the garbage collector deletes them
    - patch    # server-side apply of the desired content
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs:
    - get      # if the name exists: whether it belongs to this job
    - list     # all objects of jobs, at the start and when a watch expires
    - watch    # enqueues the job when one is deleted
    - create   # the volume of a run, with checkpoint.volume.size; never changed or deleted
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: *made  # the controller may patch only the status of its own job
{{- with include "ppojob.rowContainersRole" . }}
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterroles]
  resourceNames: [{{ . }}]
  verbs:
    - bind     # to tools pods with agent.containers; the operator itself may enter no pod
{{- end }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: *made  # only pods of the job may connect to its ports
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: *made  # a drain evicts one pod of a job at a time
- apiGroups: [""]
  resources: [secrets]
  verbs:
    - get      # existing keys, which are never replaced; Secrets are never listed
    - create   # one Secret per role
- apiGroups: [""]
  resources: [events]
  verbs:
    - create   # Events about jobs
    - list     # why a StatefulSet creates no pods, such as a quota; only if pods are missing
{{- if .Values.gangs.kueue }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: *made-and-deleted  # one per job; deleted with a suspended job's last pod
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs:
    - patch    # conditions: pods are ready, the job is finished
    - update   # releases the quota after the last pod of an evicted job
{{- end }}
{{- if .Values.gangs.volcano }}
- apiGroups: [scheduling.volcano.sh]
  resources: [podgroups]
  verbs: *made-and-deleted  # one per job; deleted with the job's last pod
{{- end }}
{{- if .Values.gangs.coscheduling }}
- apiGroups: [scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: *made-and-deleted  # one per job; deleted with the job's last pod
{{- end }}
{{- if .Values.gangs.workload }}
- apiGroups: [scheduling.k8s.io]
  resources: [workloads, podgroups]
  verbs: *made-and-deleted  # one of each per job; deleted with the job's last pod
{{- end }}
{{- end -}}

{{/* What it may do in its own namespace besides. */}}
{{- define "ppojob.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs:
    - create   # the first replica; RBAC cannot restrict create by name
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "ppojob.fullname" . }}]
  verbs:
    - get      # the current leader
    - update   # acquires and renews the Lease, conditional on its resourceVersion
{{- end -}}
