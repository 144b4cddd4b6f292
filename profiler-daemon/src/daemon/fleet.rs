//! Targets as replicas of services that run on other hosts, too.

use super::Daemon;
use super::shared::owner;
use crate::fleet::FleetTarget;

impl Daemon {
    /// Tells each sampler the number of replicas, as far as it is known.
    pub(super) fn join_fleets(&mut self, now_ns: u64) {
        if !self.fleet.is_in_use() {
            return;
        }
        let seen = self.targets.iter().map(|(id, watched)| FleetTarget {
            name: &watched.identity.name,
            labels: &watched.identity.labels,
            cpu_ns: watched.totals().cpu_ns,
            replicas: self.discovery.target(*id).and_then(|found| found.settings.replicas),
        });
        let seen: Vec<FleetTarget<'_>> = seen.collect();
        self.fleet.observe(now_ns, &seen);
        for (id, watched) in &mut self.targets {
            let replicas = self.fleet.replicas(&watched.identity.name);
            match self.sharing.shared.as_deref_mut().filter(|_| watched.shares()) {
                Some(shared) => shared.engine.join_fleet(owner(*id), replicas),
                None => watched.join_fleet(replicas),
            }
        }
    }
}
