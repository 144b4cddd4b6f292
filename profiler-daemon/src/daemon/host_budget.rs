//! The host's budget: what was spent of it, and what each target and the naming of windows may spend.

use profiler_core::rate::budget_division::Demand;

use super::{Daemon, engines, host_cpus};

impl Daemon {
    /// Books what was spent, and grants each target its part of the host's budget.
    pub(super) fn share_budget(&mut self, now_ns: u64) {
        let spent = self.spent(now_ns);
        let once_ns = spent.once_ns.saturating_sub(self.accounts.booked.once_ns);
        let names_ns = spent.names_ns.saturating_sub(self.accounts.booked.names_ns);
        self.accounts.budget.book(
            now_ns,
            spent.since(&self.accounts.booked) as f64,
            once_ns as f64,
            names_ns as f64,
        );
        self.accounts.booked = spent;
        let room_ns = self.accounts.budget.room_ns(self.accounts.host.beside_names_cpus());
        self.profiles.writer.allow(self.accounts.budget.most_for_names_cpus(), room_ns);
        self.profiles.exports.allow(host_cpus(&self.settings));
        let names_cpus = self.profiles.window_length.expected_cpus(self.sampled(), self.window_ns());
        let waits_since_ns = self.profiles.writer.waits_since_ns().unwrap_or(now_ns);
        self.accounts.budget.expect_names(names_cpus, now_ns.saturating_sub(waits_since_ns));
        let mut controllers: Vec<_> = engines(&mut self.targets, &self.apart, &mut self.sharing)
            .map(|engine| &mut engine.controller)
            .collect();
        let demands: Vec<Demand> = controllers.iter().map(|controller| controller.demand(1.0)).collect();
        let granted: Vec<f64> = controllers.iter().map(|controller| controller.granted_ratio()).collect();
        let housekeeping_cpus = self.accounts.host.housekeeping_cpus();
        let shares = self.accounts.budget.share(now_ns, housekeeping_cpus, &demands, &granted);
        for (controller, share) in controllers.iter_mut().zip(shares.iter().flat_map(|shares| &shares.of)) {
            controller.grant(share.granted_ratio);
        }
    }

    /// The length of windows: as configured, or longer if the host's budget requires it (ns).
    pub(super) fn window_ns(&self) -> u64 {
        let asked_ns = self.settings.store.window.duration().as_nanos() as u64;
        self.profiles.window_length.length_ns(asked_ns, self.sampled(), host_cpus(&self.settings))
    }
}
