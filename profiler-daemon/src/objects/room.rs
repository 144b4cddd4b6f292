//! What stays in memory: the objects that something refers to, and of their unwind tables those that there is room for.

use std::sync::Arc;

use profiler_core::process::ProcessTable;
use profiler_core::stack::ObjectId;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{CROWD, ObjectStore};

impl ObjectStore {
    /// Reads the unwind tables of all objects, which otherwise are read when a sample asks for them.
    pub(crate) fn read_tables(&self) {
        self.all().filter_map(|(_, object)| object.image.as_ref()).for_each(|image| image.read_tables());
    }

    /// Lets the unwind tables of the heaviest objects in, and those of the lightest go, where there is no room for all.
    /// Returns whether anything was changed that processes have mapped.
    pub(crate) fn rebalance(
        &mut self,
        weights: impl FnOnce() -> FxHashMap<ObjectId, f64>,
        processes: &mut ProcessTable,
    ) -> bool {
        if !self.memory.take_refused() && !self.is_short_of_room {
            return false;
        }
        let weights = weights();
        let wanted = self.all().filter(|(_, object)| object.whole.is_some() && object.room.is_wanted());
        let mut wanted: Vec<(f64, ObjectId)> =
            wanted.map(|(id, _)| (weights.get(&id).copied().unwrap_or(0.0), id)).collect();
        wanted.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        let mut left = self.memory.cap();
        let mut changed = Vec::new();
        self.is_short_of_room = false;
        for (_, id) in wanted {
            let Some(object) = self.object_mut(id) else { continue };
            let Some(whole) = object.whole.clone() else { continue };
            let bytes = whole.tables_bytes();
            let may_stay = bytes <= left;
            left -= if may_stay { bytes } else { 0 };
            if object.room.decide(may_stay) {
                let unread = Arc::new(whole.unread());
                object.image =
                    Some(if may_stay { Arc::clone(&unread) } else { Arc::new(unread.without_tables()) });
                object.whole = Some(unread);
                changed.extend(object.image.clone().map(|image| (id, image)));
            }
            self.is_short_of_room |= !may_stay;
        }
        for (id, image) in &changed {
            processes.replace_image(*id, image);
        }
        !changed.is_empty()
    }

    /// Gives the room of all unwind tables to names: no stack is unwound any more, and no process is there to use them.
    pub(crate) fn release_tables(&mut self) {
        for object in self.objects.iter_mut().flatten() {
            if let Some(whole) = &object.whole {
                object.room.release();
                let unread = Arc::new(whole.unread());
                (object.image, object.whole) = (Some(Arc::clone(&unread)), Some(unread));
            }
        }
    }

    /// Whether it is time to forget objects.
    pub(crate) fn is_crowded(&self) -> bool {
        self.objects.len() - self.free.len() >= self.crowd
    }

    /// Forgets all objects but those that stacks or processes refer to.
    pub(crate) fn keep_only(&mut self, used: &FxHashSet<ObjectId>) {
        for (at, place) in self.objects.iter_mut().enumerate() {
            let id = ObjectId(ObjectId::FIRST_FILE + at as u32);
            if place.is_some() && !used.contains(&id) {
                *place = None;
                self.free.push(id);
            }
        }
        let is_kept = |id: &ObjectId| used.contains(id);
        self.ids.retain(|_, id| is_kept(id));
        self.by_code.retain(|_, id| is_kept(id));
        self.crowd = CROWD.max(2 * (self.objects.len() - self.free.len()));
    }
}
