//! Where windows are sent.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::section::section;
use crate::{ExportFormat, Pattern, RelabelRules, Span};

section! {
    /// Backends that get every window of the store once it is named: one section for each backend. Windows wait in the store
    /// while a backend is down. A new export begins with the windows that end from then on.
    pub struct ExportSettings {
        /// What the export is called in metrics and the log: letters, digits, and - . _ @ : within. Under another name it is
        /// a new export.
        name: String = String::new(), such as "\"pyroscope\"";
        /// Address of the backend. The format's path is added if it is missing.
        to: String = String::new(), such as "\"https://pyroscope.example:4040\"";
        /// Format of the requests: pyroscope, pyroscope-push (Connect), otlp (over HTTP) or otlp-grpc. Default: according to
        /// the path of `to`, or pyroscope if there is none.
        format: Option<ExportFormat> = None, such as "\"pyroscope\"";
        /// Targets whose names match one of these regular expressions. Without this key, all targets.
        targets: Vec<Pattern> = Vec::new(), such as "[\"^web$\", \"^services:\"]";
        /// Labels, in addition to those of the targets.
        labels: BTreeMap<String, String> = BTreeMap::new(), such as "{ \"k8s.cluster.name\" = \"west\" }";
        /// Rules for the labels of its windows, as in `[[relabel]]`; the store is not changed. The label `service.name` is the
        /// service. A window is left out if a rule drops its labels.
        relabel: RelabelRules = RelabelRules::default(), such as "[{ source_labels = [\"k8s.namespace.name\"], regex = \"kube-.*\", action = \"drop\" }]";
        /// Headers of every request. Put secrets into a token file.
        headers: BTreeMap<String, String> = BTreeMap::new(), such as "{ X-Scope-OrgID = \"team\" }";
        /// File with a token, sent as `Authorization: Bearer TOKEN`. It needs https, unless the backend is on this machine.
        token_file: Option<PathBuf> = None, such as "\"/etc/sweetspot/pyroscope.token\"";
        /// File with the certificates (PEM) to trust instead of the public authorities.
        ca_file: Option<PathBuf> = None, such as "\"/etc/sweetspot/ca.pem\"";
        /// Time limit for a window, from connecting to the end of the response.
        timeout: Span = Span::from_secs(30);
    }
}
