{{/* The recommended labels of one component: (list . "name"). */}}
{{- define "member.labels" -}}
{{- $root := index . 0 -}}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{ include "member.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: strait
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The immutable labels of every pod of a component. */}}
{{- define "member.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- end }}

{{/* An image: (list . .Values.gateway.image). */}}
{{- define "member.image" -}}
{{- $root := index . 0 }}
{{- $image := index . 1 }}
{{- $name := $image.repository }}
{{- with $image.registry }}{{ $name = printf "%s/%s" . $name }}{{ end }}
{{- with $image.digest }}{{ printf "%s@%s" $name . }}
{{- else }}{{ printf "%s:%s" $name ($image.tag | default $root.Chart.AppVersion) }}{{ end }}
{{- end }}
