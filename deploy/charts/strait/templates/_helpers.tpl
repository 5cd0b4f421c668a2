{{/* The immutable labels of every pod of this release. */}}
{{- define "strait.selector" -}}
app.kubernetes.io/name: strait
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The recommended labels, and the operator's labels. */}}
{{- define "strait.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{ include "strait.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: strait
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Name and labels of an object in the release's namespace: (list . "name"). */}}
{{- define "strait.metadata" -}}
{{- $root := index . 0 -}}
name: {{ index . 1 }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "strait.labels" $root | nindent 2 }}
{{- end }}

{{/* The name of a cluster-scoped object: a cluster may have several releases. */}}
{{- define "strait.clusterName" -}}
strait-{{ .Release.Namespace }}
{{- end }}

{{- define "strait.image" -}}
{{- $name := .Values.image.repository }}
{{- with .Values.image.registry }}{{ $name = printf "%s/%s" . $name }}{{ end }}
{{- with .Values.image.digest }}{{ printf "%s@%s" $name . }}
{{- else }}{{ printf "%s:%s" $name (.Values.image.tag | default .Chart.AppVersion) }}{{ end }}
{{- end }}
