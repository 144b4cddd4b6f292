{{- define "sweetspot.labels" -}}
app.kubernetes.io/name: sweetspot
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Helm reads numbers of a values file as floats, and toToml writes 12 as 12.0, which the settings refuse as a count. */}}
{{- define "sweetspot.target" -}}
{{- $target := dict -}}
{{- range $key, $value := . -}}
{{- if kindIs "float64" $value -}}
{{- if eq $value (floor $value) -}}{{- $value = int64 $value -}}{{- end -}}
{{- end -}}
{{- $_ := set $target $key $value -}}
{{- end -}}
{{ toToml (dict "target" (list $target)) }}
{{- end }}

{{- define "sweetspot.settings" -}}
[budget]
host = {{ .Values.budget.host | toJson }}
target = {{ .Values.budget.target | toJson }}

[store]
age = {{ .Values.store.age | toJson }}
bytes = {{ .Values.store.bytes | toJson }}
{{- with .Values.store.window }}
window = {{ . | toJson }}
{{- end }}

[listen]
tcp = "{{ .Values.listen.address }}:{{ .Values.listen.port | int }}"
token_file = "/etc/sweetspot-token/token"
{{- with .Values.listen.metricsTokenKey }}
metrics_token_file = "/etc/sweetspot-token/{{ . }}"
{{- end }}
{{- if .Values.listen.tlsSecret }}
tls_certificate = "/etc/sweetspot-tls/tls.crt"
tls_key = "/etc/sweetspot-tls/tls.key"
{{- end }}
# Without CAP_CHOWN the socket can have no other group.
group = "root"

[limits]
memory = {{ .Values.memory | toJson }}
{{- with .Values.limits.targets }}
targets = {{ . | int }}
{{- end }}
{{- with .Values.limits.queue }}
queue = {{ . | toJson }}
{{- end }}
{{- with .Values.extraSettings }}

{{ . }}
{{- end }}
{{- range .Values.targets }}

{{ include "sweetspot.target" . }}
{{- end }}
{{- with .Values.exports }}

{{ toToml (dict "export" .) }}
{{- end }}
{{- end }}
