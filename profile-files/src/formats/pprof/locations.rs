//! Which location of the file an id means.

use profiler_core::profile::LocationIndex;
use rustc_hash::FxHashMap;

/// Locations by their ids, which most tools give out in the order of the list: a file has hundreds of thousands of frames,
/// and each is looked up.
#[derive(Default)]
pub(super) struct Locations {
    /// The first so many have their place in the list, from 1 on, as their id.
    in_order: u64,
    others: FxHashMap<u64, LocationIndex>,
}

impl Locations {
    pub(super) fn add(&mut self, id: u64, at: LocationIndex) {
        if id == self.in_order + 1 && id == u64::from(at.0) + 1 {
            self.in_order = id;
        } else {
            self.others.insert(id, at);
        }
    }

    /// Of several with one id, the last.
    pub(super) fn find(&self, id: u64) -> Option<LocationIndex> {
        let in_order = || (1..=self.in_order).contains(&id).then(|| LocationIndex(id as u32 - 1));
        self.others.get(&id).copied().or_else(in_order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_in_any_order_are_found() {
        for ids in [&[1, 2, 3][..], &[7, 1, 2], &[1, 2, 2, 3], &[3, 2, 1], &[0, u64::MAX], &[1, 5, 3, 1]] {
            let mut locations = Locations::default();
            ids.iter().zip(0..).for_each(|(id, at)| locations.add(*id, LocationIndex(at)));
            for id in (0..9).chain([u64::MAX]) {
                let last = ids.iter().rposition(|known| *known == id).map(|at| LocationIndex(at as u32));
                assert_eq!(locations.find(id), last, "{id} of {ids:?}");
            }
        }
    }
}
