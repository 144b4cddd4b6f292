{{- define "sweetspot.labels" -}}
app.kubernetes.io/name: sweetspot
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sweetspot.settings" -}}
[budget]
host = {{ .Values.budget.host | toJson }}
target = {{ .Values.budget.target | toJson }}

[store]
age = {{ .Values.store.age | toJson }}
bytes = {{ .Values.store.bytes | toJson }}

[listen]
tcp = "0.0.0.0:{{ .Values.listen.port | int }}"
token_file = "/etc/sweetspot-token/token"
{{- if .Values.listen.tlsSecret }}
tls_certificate = "/etc/sweetspot-tls/tls.crt"
tls_key = "/etc/sweetspot-tls/tls.key"
{{- end }}
# Without CAP_CHOWN the socket can have no other group.
group = "root"

[limits]
memory = {{ .Values.memory | toJson }}
{{- with .Values.extraSettings }}

{{ . }}
{{- end }}
{{- with .Values.targets }}

{{ toToml (dict "target" .) }}
{{- end }}
{{- with .Values.exports }}

{{ toToml (dict "export" .) }}
{{- end }}
{{- end }}
