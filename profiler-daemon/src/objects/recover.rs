//! Objects that an earlier process of ours met, found again for the names of what it left unnamed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use profiler_core::stack::ObjectId;

use super::files::{Code, Version, is_made_up};
use super::finder::parse;
use super::memory::Room;
use super::object::ObjectEntry;
use super::{Content, MappedObject, Missing, ObjectSnapshot, ObjectStore, VDSO};
use crate::opener::{Mount, Wait};
use crate::roots::RootView;
use crate::sys::procfs;
use crate::sys::root::Link;

impl ObjectStore {
    /// The object of this path, as we see it or one of these processes. Only the very file with this
    /// [identity](super::MappedObject::identity) is taken for it: another one would tell wrong names.
    pub(crate) fn find_again(&mut self, path: &str, identity: Option<&str>, pids: &[u32]) -> ObjectId {
        let mut views = vec![RootView::Ours];
        for &pid in pids {
            let view = self.roots.of(pid);
            if !views.contains(&view) {
                views.push(view);
            }
        }
        let mut missing = Missing::Deleted;
        for view in views {
            let (roots, wanted) = (self.roots.clone(), PathBuf::from(path));
            let mount = Mount::Folder { path: wanted.clone(), view: format!("{view:?}") };
            let open = move || {
                let file = roots.open(view, &wanted, Link::Follow).ok()?;
                let (meta, is_made_up) = (file.metadata().ok()?, is_made_up(&file));
                Some((file, meta, is_made_up))
            };
            let (file, meta, is_made_up) = match self.opener().call(&mount, Wait::Naming, open) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(_) => {
                    missing = Missing::NoAnswer(mount);
                    continue;
                }
            };
            let version = Version::new(&meta);
            if is_made_up || identity != Some(version.to_string().as_str()) {
                missing = Missing::Replaced;
                continue;
            }
            let room = Room::new(&self.memory);
            let (held, image) = parse(&self.files, file, &meta, &room, &self.once);
            held.is_at(view, Path::new(path));
            let image = image.ok().map(Arc::new);
            let code = image.is_some().then_some(Code { version, view });
            let names = code.zip(image.as_ref());
            let names = names.map_or_else(Arc::default, |(code, image)| self.names.of(code, image));
            let object = MappedObject { path: path.to_owned(), content: Content::File(held), view, names };
            let snapshot = ObjectSnapshot { object: Arc::new(object), image: image.clone() };
            return self.enter(ObjectEntry { snapshot, whole: image, room, code, tries: 1 });
        }
        self.enter_missing(path, missing)
    }

    /// The kernel's code in every process, of this boot.
    pub(crate) fn vdso_again(&mut self) -> ObjectId {
        let content = procfs::vdso_image().map(|bytes| Content::Image(Arc::new(bytes)));
        match content {
            Some(content) => self.enter_without_code(VDSO, content),
            None => self.enter_missing(VDSO, Missing::NoVdso),
        }
    }

    /// An object whose bytes are not to be had.
    pub(crate) fn enter_missing(&mut self, path: &str, missing: Missing) -> ObjectId {
        self.enter_without_code(path, Content::Missing(missing))
    }

    fn enter_without_code(&mut self, path: &str, content: Content) -> ObjectId {
        let object =
            MappedObject { path: path.to_owned(), content, view: RootView::Ours, names: Arc::default() };
        let snapshot = ObjectSnapshot { object: Arc::new(object), image: None };
        self.enter(ObjectEntry { snapshot, whole: None, room: Room::new(&self.memory), code: None, tries: 1 })
    }
}
