//! Where the fleet's CPU time comes from. What the files hold is looked at where it is used. No text shows the address: it may hold
//! a password.

use super::absolute;
use crate::Span;
use crate::daemon::{DaemonSettings, TargetSettings};
use crate::problem::Log;

/// Says in `log` what is wrong with it.
pub(super) fn check(settings: &DaemonSettings, log: &mut Log) {
    let fleet = &settings.fleet;
    for (path, file) in [("fleet.token_file", &fleet.token_file), ("fleet.ca_file", &fleet.ca_file)] {
        let Some(file) = file else { continue };
        absolute(path, file, log);
        if fleet.prometheus.is_none() && log.are_read(&["fleet.prometheus"]) {
            log.wrong_key(path, "this is for a Prometheus; write fleet.prometheus too, or remove this");
        }
    }
    if let Some(address) = &fleet.prometheus {
        check_address(address, log);
    }
    if !(Span::from_secs(1)..=Span::from_secs(60)).contains(&fleet.timeout) {
        let text = format!("{} is not a valid timeout; write 1s to 1m", fleet.timeout);
        log.wrong_key("fleet.timeout", text);
    }
    if !TargetSettings::is_label_name(&fleet.label) && log.are_read(&["fleet.label"]) {
        let text =
            "this is not a valid label name; write target, or a label of targets such as k8s.deployment.name";
        log.wrong_key("fleet.label", text);
    }
}

fn check_address(address: &str, log: &mut Log) {
    const GIVE: &str = "write one such as http://prometheus.example:9090";
    let rest = address.strip_prefix("https://").or_else(|| address.strip_prefix("http://"));
    let text = match rest {
        Some(rest) if rest.contains('@') => {
            "this holds a user or a password; give a token with fleet.token_file".to_owned()
        }
        Some(rest) if rest.contains(['?', '#']) => {
            format!("this holds more than an address and a path; {GIVE}")
        }
        Some(rest) if !rest.starts_with('/') && !rest.is_empty() && !rest.contains(char::is_whitespace) => {
            return;
        }
        _ => format!("this is not an http or https address; {GIVE}"),
    };
    log.wrong_key("fleet.prometheus", text);
}
