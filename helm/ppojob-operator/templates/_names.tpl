{{/* Name of everything in the release's namespace; short enough for a label. */}}
{{- define "ppojob.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{/* Name of what is cluster-wide: two releases of one name in two namespaces must not meet. */}}
{{- define "ppojob.clusterName" -}}
{{ printf "%s-%s" .Release.Namespace (include "ppojob.fullname" .) | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/*
The ClusterRole of tools pods that create the pods of rows. Empty: no job may have them, as without the
policy, since whoever may create any pod can read every Secret of the namespace.
*/}}
{{- define "ppojob.rowContainersRole" -}}
{{- if and .Values.rowContainers.enabled .Values.admissionPolicy.enabled -}}
{{ include "ppojob.clusterName" . }}-row-containers
{{- end -}}
{{- end -}}

{{- define "ppojob.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "ppojob.fullname" .) }}
{{- end -}}

{{- define "ppojob.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "ppojob.labels" -}}
{{ include "ppojob.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* An image, from (dict "image" ... "version" ...). */}}
{{- define "ppojob.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .version }}
{{- end -}}
{{- end -}}

{{/* "true" or "false". */}}
{{- define "ppojob.openshift" -}}
{{- if eq (toString .Values.openshift) "auto" -}}
{{ .Capabilities.APIVersions.Has "security.openshift.io/v1" }}
{{- else -}}
{{ .Values.openshift }}
{{- end -}}
{{- end -}}

{{/* What may place all pods of a job together, as the operator's setting has it. */}}
{{- define "ppojob.gangs" -}}
{{- $on := list -}}
{{- range $name, $is := .Values.gangs -}}
{{- if $is }}{{ $on = append $on $name }}{{ end -}}
{{- end -}}
{{- join "," $on -}}
{{- end -}}
