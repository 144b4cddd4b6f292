//! Control groups by path, and how many processes are in each and below.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::place::Place;

/// Depth of nested groups that are distinguished; deeper ones count as this deep.
const MAX_DEPTH: usize = 64;

/// A group with processes in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PlaceId(u32);

/// All groups with processes in them, and those above.
#[derive(Debug, Default)]
pub(super) struct Places {
    all: Vec<Option<Place>>,
    free: Vec<PlaceId>,
    by_path: FxHashMap<Arc<str>, PlaceId>,
}

impl Places {
    /// The group of this id, which has processes in it.
    pub(super) fn get(&self, id: PlaceId) -> Option<&Place> {
        self.all.get(id.0 as usize)?.as_ref()
    }

    /// Processes in a group and below.
    pub(super) fn processes(&self, id: PlaceId) -> u32 {
        self.get(id).map_or(0, |place| place.processes)
    }

    /// Whether a group is another, or below it.
    pub(super) fn is_within(&self, id: PlaceId, outer: PlaceId) -> bool {
        self.upward(id).any(|(at, _)| at == outer)
    }

    /// A group and those above it, innermost first.
    pub(super) fn upward(&self, id: PlaceId) -> impl Iterator<Item = (PlaceId, &Place)> {
        let with_id = |id| Some((id, self.get(id)?));
        std::iter::successors(with_id(id), move |(_, place)| with_id(place.parent?))
    }

    /// Ids of the containers that hold a process.
    pub(super) fn containers(&self) -> impl Iterator<Item = Arc<str>> {
        let all = self
            .all
            .iter()
            .enumerate()
            .filter_map(|(at, place)| Some((at, place.as_ref()?.container.as_ref()?)));
        let outermost = all.filter(|(at, container)| container.place.0 as usize == *at);
        outermost.map(|(_, container)| Arc::clone(&container.name))
    }

    /// A process is in the group of this path.
    pub(super) fn enter(&mut self, path: &str) -> PlaceId {
        let id = self.find(path);
        self.count(id, 1);
        id
    }

    /// A process left this group; the group is forgotten if it was the last.
    pub(super) fn leave(&mut self, id: PlaceId) {
        self.count(id, -1);
    }

    fn count(&mut self, id: PlaceId, by: i32) {
        let mut next = Some(id);
        while let Some(id) = next {
            let Some(place) = self.all[id.0 as usize].as_mut() else { return };
            place.processes = place.processes.saturating_add_signed(by);
            next = place.parent;
            if place.processes == 0 {
                self.by_path.remove(&place.path);
                self.all[id.0 as usize] = None;
                self.free.push(id);
            }
        }
    }

    fn find(&mut self, path: &str) -> PlaceId {
        if let Some(&id) = self.by_path.get(path) {
            return id;
        }
        let mut id = self.by_path.get("/").copied().unwrap_or_else(|| self.add(Place::root()));
        for name in path.split('/').filter(|name| !name.is_empty()).take(MAX_DEPTH) {
            let Some(parent) = self.get(id) else { return id };
            let above = if parent.parent.is_some() { &*parent.path } else { "" };
            let below = format!("{above}/{name}");
            id = match self.by_path.get(below.as_str()) {
                Some(&known) => known,
                None => self.add_below(id, name, below.into()),
            };
        }
        id
    }

    fn add_below(&mut self, parent: PlaceId, name: &str, path: Arc<str>) -> PlaceId {
        let id = self.next_id();
        let place = match self.get(parent) {
            Some(above) => above.below(id, parent, name, path),
            None => Place::root().below(id, parent, name, path),
        };
        self.add(place)
    }

    fn next_id(&self) -> PlaceId {
        self.free.last().copied().unwrap_or(PlaceId(u32::try_from(self.all.len()).unwrap_or(u32::MAX)))
    }

    fn add(&mut self, place: Place) -> PlaceId {
        let id = self.next_id();
        self.by_path.insert(Arc::clone(&place.path), id);
        if self.free.pop().is_some() {
            self.all[id.0 as usize] = Some(place);
        } else {
            self.all.push(Some(place));
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_counted_with_those_below_and_forgotten_when_empty() {
        let mut places = Places::default();
        let [a, b, c] = ["/a", "/a/b", "/c"].map(|path| places.enter(path));
        assert_eq!(places.enter("/a/b"), b);
        assert_eq!([a, b, c].map(|id| places.processes(id)), [3, 2, 1]);
        assert!(places.is_within(b, a) && !places.is_within(a, b) && !places.is_within(c, a));
        places.leave(a);
        assert_eq!(places.processes(a), 2, "b is below");
        for id in [b, b, c] {
            places.leave(id);
        }
        assert!(places.by_path.is_empty() && places.all.iter().all(Option::is_none));
        let again = places.enter("/c");
        assert_eq!(&*places.get(again).unwrap().path, "/c");
        assert!(places.all.len() <= 4);
    }

    #[test]
    fn a_path_without_end_is_bounded() {
        let mut places = Places::default();
        let id = places.enter(&"/a".repeat(100_000));
        assert_eq!(places.upward(id).count(), MAX_DEPTH + 1);
        assert_eq!(places.enter(&"/a".repeat(MAX_DEPTH)), id);
    }
}
