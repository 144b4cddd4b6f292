//! A profile for Pyroscope's `/ingest`: the pprof file as the body, all else in the query.
//!
//! <https://grafana.com/docs/pyroscope/latest/reference-server-api/>

use std::collections::BTreeMap;

use form_urlencoded::Serializer;
use profiler_core::profile::Run;

use super::client::Post;
use super::naming::PushIdentity;
use super::source::PushSource;

/// The request for a profile.
pub(super) fn post(source: &PushSource, identity: &PushIdentity) -> Post {
    Post {
        query: Some(query(&source.profile.run, identity)),
        content_type: "application/octet-stream",
        header: None,
        is_compressed: false, // as far as HTTP is concerned: what is in the file is for Pyroscope
        body: source.pprof.clone(),
    }
}

fn query(run: &Run, identity: &PushIdentity) -> String {
    let mut query = Serializer::new(String::new());
    query.append_pair("name", &name(identity));
    // Of a file without a time, Pyroscope takes the moment of the request.
    if run.start_unix_ns > 0 {
        let end_ns = run.start_unix_ns.saturating_add((run.duration_s * 1e9) as u64);
        query.append_pair("from", &(run.start_unix_ns / 1_000_000_000).to_string());
        query.append_pair("until", &end_ns.div_ceil(1_000_000_000).to_string());
    }
    query.append_pair("format", "pprof");
    query.append_pair("spyName", "sweetspot");
    // A whole number is expected.
    if run.rate.rate_hz >= 0.5 {
        query.append_pair("sampleRate", &(run.rate.rate_hz.round() as u32).to_string());
    }
    query.finish()
}

/// `service{key=value,…}`, with no character that means something else there or that Pyroscope refuses.
fn name(identity: &PushIdentity) -> String {
    let value = |text: &str| only(text, |c| !matches!(c, ',' | '}'));
    let labels = labels(identity).into_iter().map(|(key, text)| format!("{key}={}", value(&text)));
    format!("{}{{{}}}", service(identity), labels.collect::<Vec<_>>().join(","))
}

/// The service, with no character that Pyroscope refuses in the name of an application.
pub(super) fn service(identity: &PushIdentity) -> String {
    only(&identity.service, |c| c.is_ascii_alphanumeric() || "_-./".contains(c))
}

/// The labels by names that Pyroscope accepts, each once.
pub(super) fn labels(identity: &PushIdentity) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for (key, value) in &identity.labels {
        labels.entry(label_name(key)).or_insert(only(value.trim(), |c| !c.is_control()));
    }
    labels
}

/// Pyroscope makes a dot an underscore as well. A name begins with no digit.
pub(super) fn label_name(text: &str) -> String {
    let name = only(text, |c| c.is_ascii_alphanumeric() || c == '_');
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("_{name}") } else { name }
}

/// The text with an underscore for every character that is not allowed.
fn only(text: &str, is_allowed: impl Fn(char) -> bool) -> String {
    text.chars().map(|c| if is_allowed(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use profile_files::testing;

    use profiler_core::profile::RateFigures;

    use super::*;

    fn identity(service: &str, labels: &[(&str, &str)]) -> PushIdentity {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        PushIdentity { service: service.to_owned(), labels: labels.iter().map(owned).collect() }
    }

    #[test]
    fn the_query_says_whose_profile_of_which_time() {
        let run = testing::profile().run;
        let query = query(&run, &identity("shop", &[("team", "a b"), ("k8s.pod.name", "shop-0")]));
        assert_eq!(
            query,
            "name=shop%7Bk8s_pod_name%3Dshop-0%2Cteam%3Da+b%7D&from=1760000000&until=1760000013&format=pprof\
             &spyName=sweetspot&sampleRate=60"
        );
        let other = Run { rate: RateFigures { rate_hz: f64::NAN, ..run.rate }, start_unix_ns: 0, ..run };
        assert_eq!(self::query(&other, &identity("x", &[])), "name=x%7B%7D&format=pprof&spyName=sweetspot");
    }

    #[test]
    fn a_name_and_labels_hold_no_character_that_ends_them() {
        let labels = [("a b", "x,y}z=1"), ("__x", " v "), ("l", "two\nlines"), ("3rd", "")];
        assert_eq!(name(&identity("my shop{", &labels)), "my_shop_{_3rd=,__x=v,a_b=x_y_z=1,l=two_lines}");
    }
}
