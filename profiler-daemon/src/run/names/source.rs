//! Where the names of one object come from.

use std::path::Path;
use std::sync::Arc;

use profiler_core::profile::Unknown;
use symbolizer::{DebugFiles, Limits, ReadAt, Reason, Symbolized};

use super::super::remedy;
use crate::debuginfod::Debuginfod;
use crate::objects::names::{About, Found};
use crate::objects::{Content, Object, Objects};
use crate::roots::{Roots, View};

/// Where the names of one object come from.
pub(super) enum Source<'a> {
    Object(Box<symbolizer::Object<'a>>),
    /// Nowhere; the reason.
    None(Unknown),
}

impl<'a> Source<'a> {
    /// Reads what tells the names of an object.
    pub(super) fn open(object: &'a Object, objects: &Objects, debuginfod: Option<&Arc<Debuginfod>>) -> Self {
        let load = |bytes: &'a dyn ReadAt| {
            let (view, roots) = (object.view, objects.roots.clone());
            let files = DebugFilesOf { view, roots, debuginfod: debuginfod.cloned() };
            let limits = Limits::of_all(objects.memory.left());
            symbolizer::Object::load_within(limits, bytes, Path::new(&object.path), &files)
        };
        if let Some(missing) = object.missing() {
            return Self::None(remedy::missing(&missing));
        }
        objects.names.count_source();
        let loaded = match &object.content {
            Content::File(file) => load(file),
            Content::Image(image) => load(image),
            Content::Missing(missing) => return Self::None(remedy::missing(missing)),
        };
        loaded.map_or_else(
            |reason| Self::None(remedy::unreadable(&reason)),
            |object| Self::Object(Box::new(object)),
        )
    }

    /// What there is to say of it beside names.
    pub(super) fn about(&self) -> About {
        let Self::Object(object) = self else { return About::default() };
        let too_large = object.warnings().iter().find(|reason| matches!(reason, Reason::TooLarge { .. }));
        let build_id = object.build_id().map(str::to_owned);
        About { build_id, too_large: too_large.cloned(), is_final: false }
    }

    /// What it takes of memory at most (bytes).
    pub(super) fn memory_bytes(&self) -> u64 {
        match self {
            Self::Object(object) => object.memory_bytes(),
            Self::None(_) => 0,
        }
    }

    /// The functions at each of these addresses of the object at `path`, or why they are not known.
    pub(super) fn look_up(&self, addresses: &[u64], path: &str, asks_servers: bool) -> Vec<Found> {
        match self {
            Self::Object(object) => {
                let known = |symbolized| match symbolized {
                    Symbolized::Known(frames) => Ok(frames),
                    Symbolized::Unknown(reason) => Err(remedy::nameless(&reason, object, path, asks_servers)),
                };
                object.symbolize_all(addresses).into_iter().map(known).collect()
            }
            Self::None(reason) => addresses.iter().map(|_| Err(reason.clone())).collect(),
        }
    }
}

/// Separate debug files, as the process that mapped the object sees them; and at last on servers.
#[derive(Clone)]
struct DebugFilesOf {
    view: View,
    roots: Roots,
    debuginfod: Option<Arc<Debuginfod>>,
}

impl DebugFiles for DebugFilesOf {
    fn open(&self, path: &Path) -> Option<Box<dyn ReadAt>> {
        let file = self.roots.open_debug_file(self.view, path).ok()?;
        Some(Box::new(file))
    }

    fn fetch(&self, build_id: &str) -> Option<Box<dyn ReadAt>> {
        Some(Box::new(self.debuginfod.as_ref()?.debug_file(build_id)?))
    }

    fn share(&self) -> Option<Box<dyn DebugFiles + Send + Sync>> {
        Some(Box::new(self.clone()))
    }
}
