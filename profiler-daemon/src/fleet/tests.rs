use config::FleetSettings;

use super::*;

fn settings(text: &str) -> DaemonSettings {
    DaemonSettings::parse(text.as_bytes()).unwrap()
}

/// A host whose Prometheus is played by the test: no thread asks it.
struct Host {
    fleet: Fleet,
    now_s: u64,
    labels: BTreeMap<String, String>,
    replicas: Option<u32>,
}

impl Host {
    fn new(label: &str) -> Self {
        let fleet = FleetSettings {
            prometheus: Some("http://127.0.0.1:9".to_owned()),
            label: label.to_owned(),
            ..FleetSettings::default()
        };
        let client = PrometheusClient::new(&fleet).unwrap();
        let settings = DaemonSettings { fleet, ..DaemonSettings::default() };
        let fleet = Fleet { has_thread: true, ..Fleet::default() };
        let mut host = Self { fleet, now_s: 0, labels: BTreeMap::new(), replicas: None };
        host.fleet.adopt(client, &settings, 0);
        host
    }

    /// Plays so many seconds, in which `web` uses one CPU.
    fn play(&mut self, seconds: u64) -> &Membership {
        for _ in 0..seconds {
            self.now_s += 1;
            let web = FleetTarget {
                name: "web",
                labels: &self.labels,
                cpu_ns: self.now_s * SECOND_NS,
                replicas: self.replicas,
            };
            self.fleet.observe(self.now_s * SECOND_NS, &[web]);
        }
        self.fleet.membership("web").expect("the settings say something of a fleet")
    }

    fn answer(&mut self, services: &[(&str, f64)]) -> &Membership {
        {
            let mut answer = self.fleet.shared.answer();
            answer.number += 1;
            (answer.at_ns, answer.range_ns) = (Some(self.now_s * SECOND_NS), 100 * SECOND_NS);
            let figure = |(name, cpus): &(&str, f64)| ((*name).to_owned(), Some(*cpus));
            answer.services = Arc::new(services.iter().map(figure).collect());
        }
        self.play(1)
    }
}

fn reason(member: &Membership) -> &str {
    assert_eq!((member.replicas, member.source), (1.0, ReplicaSource::None));
    member.reason.as_deref().expect("a reason")
}

#[test]
fn what_runs_elsewhere_makes_a_target_one_of_many() {
    let mut host = Host::new("target");
    assert_eq!(reason(host.play(200)), NOT_YET);
    let member = host.answer(&[("web", 6.0), ("db", 100.0)]);
    assert!((member.replicas - 6.0).abs() < 0.1 && member.source == ReplicaSource::Prometheus, "{member:?}");
    let before = member.clone();
    assert_eq!(*host.play(59), before, "until the next answer");
    let member = host.answer(&[("web", 10_000.0)]);
    assert!((member.replicas / 10_000.0 - 1.0).abs() < 0.01, "{member:?}");
    assert_eq!(host.fleet.status().unwrap().members, 1);
}

#[test]
fn one_that_has_just_begun_is_compared_once_it_is_known_what_it_uses() {
    let mut host = Host::new("target");
    host.answer(&[("web", 6.0)]);
    assert_eq!(reason(host.play(28)), JUST_BEGUN);
    let replicas = host.play(5).replicas;
    assert!((5.0..7.0).contains(&replicas), "{replicas}");
}

#[test]
fn what_was_used_while_there_was_no_fleet_is_not_taken_for_recent() {
    let mut host = Host::new("target");
    host.fleet.is_asked_for = false;
    host.now_s = 600;
    host.fleet.observe(600 * SECOND_NS, &[]);
    host.fleet.is_asked_for = true;
    host.play(60);
    let replicas = host.answer(&[("web", 6.0)]).replicas;
    assert!((replicas - 6.0).abs() < 0.1, "{replicas}");
}

#[test]
fn an_answer_of_five_minutes_ago_counts_no_more() {
    let mut host = Host::new("target");
    host.play(200);
    host.answer(&[("web", 6.0)]);
    assert!(host.play(298).replicas > 5.0);
    assert_eq!(reason(host.play(5)), NO_ANSWER);
    assert!(host.answer(&[("web", 6.0)]).replicas > 5.0);
}

#[test]
fn what_cannot_be_is_not_believed_and_told() {
    let mut host = Host::new("target");
    host.play(200);
    assert!(reason(host.answer(&[("web", 0.3)])).contains("it is 0.30 CPUs, less than the 1.00"));
    assert_eq!(reason(host.answer(&[("db", 6.0)])), NO_SERIES);
    host.fleet.shared.answer().services = Arc::new(Services::from([("web".to_owned(), None)]));
    host.fleet.shared.answer().number += 1;
    assert_eq!(reason(host.play(1)), NO_NUMBER);
}

#[test]
fn replicas_may_have_a_label_in_common() {
    let mut host = Host::new("k8s.deployment.name");
    host.play(200);
    assert_eq!(reason(host.answer(&[("cart", 6.0)])), NO_LABEL);
    host.labels.insert("k8s.deployment.name".to_owned(), "cart".to_owned());
    assert!((host.answer(&[("cart", 6.0)]).replicas - 6.0).abs() < 0.1);
}

#[test]
fn the_settings_number_comes_first() {
    let mut host = Host::new("target");
    host.play(200);
    host.answer(&[("web", 6.0)]);
    host.replicas = Some(40);
    let member = host.play(1);
    assert_eq!((member.replicas, member.source), (40.0, ReplicaSource::Settings));
    host.replicas = None;
    assert!((host.play(1).replicas - 6.0).abs() < 0.1);
}

#[test]
fn without_a_word_in_the_settings_there_is_no_fleet() {
    let mut host = Host::new("target");
    host.play(200);
    host.answer(&[("web", 6.0)]);
    host.fleet.adopt(None, &DaemonSettings::default(), 0);
    assert!(host.fleet.status().is_none());
    // The samplers are still to be told.
    assert!(host.fleet.is_in_use() && host.fleet.replicas("web") == Replicas::ONE);
    host.fleet.observe(host.now_s * SECOND_NS, &[]);
    assert!(!host.fleet.is_in_use() && host.fleet.replicas("web") == Replicas::ONE);
    // The settings alone can say it.
    let says = settings("[[target]]\nname = \"web\"\npid = 1\nreplicas = 12\n");
    host.fleet.adopt(None, &says, 0);
    host.replicas = Some(12);
    assert_eq!(host.play(1).replicas, 12.0);
    assert_eq!(host.fleet.status().unwrap().prometheus, None);
}

#[test]
fn another_prometheus_has_not_said_what_the_first_one_has() {
    let mut host = Host::new("target");
    host.play(200);
    host.answer(&[("web", 6.0)]);
    let adopt = |host: &mut Host, address: &str| {
        let fleet = FleetSettings { prometheus: Some(address.to_owned()), ..FleetSettings::default() };
        let client = PrometheusClient::new(&fleet).unwrap();
        host.fleet.adopt(client, &DaemonSettings { fleet, ..DaemonSettings::default() }, 0);
    };
    adopt(&mut host, "http://127.0.0.1:9");
    assert!(host.play(1).replicas > 5.0);
    adopt(&mut host, "http://127.0.0.1:10");
    assert_eq!(reason(host.play(1)), NOT_YET);
}

#[test]
fn a_problem_says_what_becomes_of_it() {
    let mut host = Host::new("target");
    assert_eq!(degraded(host.fleet.status().as_ref()), None);
    host.fleet.shared.answer().problem = Some("p:9090 is not found".to_owned());
    let told = degraded(host.fleet.status().as_ref()).unwrap();
    assert_eq!(told, "fleet: p:9090 is not found; each host is sampled as a fleet of one");
    host.fleet.shared.answer().at_ns = Some(clock::monotonic_ns());
    assert!(degraded(host.fleet.status().as_ref()).unwrap().ends_with("counts for five minutes"));
    host.play(1);
}
