//! What stays in memory: the objects that something refers to, and of their unwind tables those that there is room for.
//!
//! Every two seconds, if tables were refused, those of the objects with the most samples are let in and others
//! are evicted. The images in the address spaces are replaced; the code of evicted objects counts as code
//! without tables.

use std::sync::Arc;

use profiler_core::process::ProcessTable;
use profiler_core::stack::ObjectId;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{CROWD, ObjectStore, place};
use crate::roots::RootView;

impl ObjectStore {
    /// Reads the unwind tables of all objects, which otherwise are read when a sample asks for them.
    pub(crate) fn read_tables(&self) {
        self.all()
            .filter_map(|(_, entry)| entry.snapshot.image.as_ref())
            .for_each(|image| image.read_tables());
    }

    /// Lets the unwind tables of the heaviest objects in, and those of the lightest go, where there is no room for all: of all
    /// targets that share it, each of which does so for its own.
    /// Returns whether anything was changed that processes have mapped.
    pub(crate) fn rebalance(
        &mut self,
        weights: impl FnOnce() -> FxHashMap<ObjectId, f64>,
        processes: &mut ProcessTable,
    ) -> bool {
        let refusals = self.memory.refusals();
        if std::mem::replace(&mut self.bounds.refusals, refusals) == refusals && !self.bounds.is_short_of_room
        {
            return false;
        }
        let weights = weights();
        let wanted = self.all().filter(|(_, entry)| entry.whole.is_some() && entry.room.is_wanted());
        let wanted = wanted.map(|(id, entry)| {
            let bytes = entry.whole.as_ref().map_or(0, |whole| whole.tables_bytes());
            entry.room.ask(bytes, weights.get(&id).copied().unwrap_or(0.0));
            id
        });
        let wanted: Vec<ObjectId> = wanted.collect();
        let staying = self.memory.staying();
        let mut changed = Vec::new();
        self.bounds.is_short_of_room = false;
        for id in wanted {
            let Some(entry) = self.entry_mut(id) else { continue };
            let Some(whole) = entry.whole.clone() else { continue };
            let may_stay = staying.contains(&Arc::as_ptr(&entry.room));
            if entry.room.decide(may_stay) {
                let unread = Arc::new(whole.unread());
                entry.snapshot.image =
                    Some(if may_stay { Arc::clone(&unread) } else { Arc::new(unread.without_tables()) });
                entry.whole = Some(unread);
                changed.extend(entry.snapshot.image.clone().map(|image| (id, image)));
            }
            self.bounds.is_short_of_room |= !may_stay;
        }
        for (id, image) in &changed {
            processes.replace_image(*id, image);
        }
        !changed.is_empty()
    }

    /// Gives the room of all unwind tables to names: no stack is unwound any more, and no process is there to use them.
    pub(crate) fn release_tables(&mut self) {
        for entry in self.entries.iter_mut().flatten() {
            if let Some(whole) = &entry.whole {
                entry.room.release();
                let unread = Arc::new(whole.unread());
                (entry.snapshot.image, entry.whole) = (Some(Arc::clone(&unread)), Some(unread));
            }
        }
    }

    /// Whether unwind tables have to stay away: the weights of their objects matter.
    pub(crate) fn is_short_of_room(&self) -> bool {
        self.bounds.is_short_of_room
    }

    /// Whether stacks end for lack of room: unwind tables were asked for that are not in memory.
    pub(crate) fn lacks_tables(&self) -> bool {
        self.all().any(|(_, entry)| entry.room.is_away())
    }

    /// Names are asked for while stacks are unwound: half of the room is theirs from now on.
    pub(crate) fn share_with_names(&self) {
        self.memory.share_with_names();
    }

    /// Whether it is time to forget objects.
    pub(crate) fn is_crowded(&self) -> bool {
        self.entries.len() - self.free.len() >= self.bounds.crowd
    }

    /// Forgets all objects but those that stacks or processes refer to.
    pub(crate) fn keep_only(&mut self, used: &FxHashSet<ObjectId>) {
        self.forget(|id, _| !used.contains(&id));
        self.bounds.crowd = CROWD.max(2 * (self.entries.len() - self.free.len()));
    }

    /// Releases the file systems that no process sees any more, with what was opened there, except those of objects that are in
    /// use: another process may have mapped the same file.
    pub(crate) fn release_roots(&mut self, seen: &FxHashSet<RootView>, used: &FxHashSet<ObjectId>) {
        let unseen = self.roots.foreign_views().into_iter().filter(|view| !seen.contains(view));
        let unseen: FxHashSet<RootView> = unseen.collect();
        if unseen.is_empty() {
            return;
        }
        let mut deserted = unseen.clone();
        for (_, entry) in self.all().filter(|(id, _)| used.contains(id)) {
            deserted.remove(&entry.snapshot.view);
        }
        self.forget(|_, view| deserted.contains(&view));
        // Whoever maps the same from now on opens it where it is seen.
        let (ids, entries) = (&mut self.ids, &self.entries);
        ids.retain(|_, id| {
            let entry = place(*id).and_then(|at| entries.get(at)?.as_ref());
            entry.is_none_or(|entry| !unseen.contains(&entry.snapshot.view))
        });
        self.roots.release(&deserted);
    }

    fn forget(&mut self, is_forgotten: impl Fn(ObjectId, RootView) -> bool) {
        let mut forgotten = FxHashSet::default();
        for (at, place) in self.entries.iter_mut().enumerate() {
            let id = ObjectId(ObjectId::FIRST_FILE + at as u32);
            if place.as_ref().is_some_and(|entry| is_forgotten(id, entry.snapshot.view)) {
                *place = None;
                self.free.push(id);
                forgotten.insert(id);
            }
        }
        self.ids.retain(|_, id| !forgotten.contains(id));
        self.by_code.retain(|_, id| !forgotten.contains(id));
    }
}
