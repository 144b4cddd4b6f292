//! Control groups by path: the units and the container that each stands for, and how many processes are in it and below.

use std::sync::Arc;

use rustc_hash::FxHashMap;

/// Groups below one another that are told apart; deeper ones count as this deep.
const MAX_DEPTH: usize = 64;
/// Digits of a container's id.
const ID_DIGITS: usize = 64;
/// Kinds of systemd's units that hold processes or other units, but slices.
const UNIT_KINDS: [&str; 5] = [".service", ".scope", ".socket", ".mount", ".swap"];

/// A group that somebody is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PlaceId(u32);

/// A part of a path that stands for something: what it is called, and its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: Arc<str>,
    pub(super) place: PlaceId,
}

/// Who names the groups below a group. What a service or a container makes in its own group means nothing to systemd: else
/// it could call itself by another's name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Manager {
    System,
    /// A user's: the unit that it is itself.
    User(Arc<str>),
    /// Not systemd.
    None,
}

/// A group.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// From the root of the hierarchy.
    pub(super) path: Arc<str>,
    /// All units that it belongs to, outer ones first: slices, a service or scope, and those of a user's manager.
    pub(super) units: Vec<Named>,
    /// The innermost unit that is no slice.
    pub(super) unit: Option<Named>,
    /// The outermost container: those inside are its own business.
    pub(super) container: Option<Named>,
    parent: Option<PlaceId>,
    manager: Manager,
    /// Processes in it and below.
    processes: u32,
}

impl Place {
    /// The unit's name, for users' managers with the manager's: `user@1000:app.service`.
    pub(super) fn unit_in_full(&self) -> Option<String> {
        let unit = self.unit.as_ref()?;
        let mut units = self.units.iter();
        let manager = units.find(|outer| is_user_manager(&outer.name) && outer.place != unit.place);
        Some(manager.map_or_else(
            || unit.name.to_string(),
            |manager| format!("{}:{}", manager.name.trim_end_matches(".service"), unit.name),
        ))
    }
}

/// All groups that somebody is in, and those above.
#[derive(Debug, Default)]
pub(super) struct Places {
    all: Vec<Option<Place>>,
    free: Vec<PlaceId>,
    by_path: FxHashMap<Arc<str>, PlaceId>,
}

impl Places {
    /// The group of this id, which somebody is in.
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

    /// A process is in the group of this path.
    pub(super) fn enter(&mut self, path: &str) -> PlaceId {
        let id = self.find(path);
        self.count(id, 1);
        id
    }

    /// A process is not in this group any more; forgets it where it was the last.
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
            None => Place { path, parent: Some(parent), ..Place::root() },
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

impl Place {
    fn root() -> Self {
        let path = Arc::from("/");
        let (units, manager) = (Vec::new(), Manager::System);
        Self { path, units, unit: None, container: None, parent: None, manager, processes: 0 }
    }

    /// What a group of this name below it stands for.
    fn below(&self, id: PlaceId, parent: PlaceId, name: &str, path: Arc<str>) -> Self {
        // systemd escapes what the kernel would take for a file of its own.
        let unescaped = name.strip_prefix('_').unwrap_or(name);
        let named = |name: &str| Named { name: name.into(), place: id };
        let mut place = Self { path, parent: Some(parent), processes: 0, ..self.clone() };
        if place.container.is_none() {
            place.container = container(&self.path, name).map(named);
        }
        if self.manager == Manager::None {
            return place;
        }
        if is_unit(unescaped, &[".slice"]) {
            place.units.push(named(unescaped));
            return place;
        }
        place.manager = Manager::None;
        if is_unit(unescaped, &UNIT_KINDS) {
            place.units.push(named(unescaped));
            place.unit = Some(named(unescaped));
            if self.manager == Manager::System && is_user_manager(unescaped) {
                place.manager = Manager::User(unescaped.into());
            }
        }
        place
    }
}

fn is_unit(name: &str, kinds: &[&str]) -> bool {
    kinds.iter().any(|kind| name.len() > kind.len() && name.ends_with(kind))
}

fn is_user_manager(name: &str) -> bool {
    name.starts_with("user@") && name.ends_with(".service")
}

/// The container that a group of this name stands for: Docker's, containerd's, CRI-O's and Podman's are called by an id, with
/// the engine before it where systemd makes the group; LXC's by a name.
fn container<'n>(above: &str, name: &'n str) -> Option<&'n str> {
    if let Some(name) = name.strip_prefix("lxc.payload.").filter(|name| !name.is_empty()) {
        return Some(name);
    }
    if matches!(above, "/lxc" | "/lxc.payload") {
        return Some(name);
    }
    let scope = name.strip_suffix(".scope").unwrap_or(name);
    let id = scope.rsplit(['-', ':']).next().filter(|id| is_id(id))?;
    // The process that watches over a container has a group by its id, and is outside of it.
    let engine = scope[..scope.len() - id.len()].trim_end_matches(['-', ':']);
    (!engine.ends_with("conmon")).then_some(id)
}

fn is_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f4e5d6c7b8a90123f4e5d6c7b8a90123f4e5d6c7b8a90123f4e5d6c7b8a9012";

    fn place(path: &str) -> Place {
        let mut places = Places::default();
        let id = places.enter(&path.replace("ID", ID));
        places.get(id).unwrap().clone()
    }

    fn units(path: &str) -> Vec<String> {
        place(path).units.iter().map(|unit| unit.name.to_string()).collect()
    }

    #[test]
    fn units_are_those_that_systemd_named() {
        assert_eq!(units("/system.slice/nginx.service"), ["system.slice", "nginx.service"]);
        assert_eq!(units("/nginx.service"), ["nginx.service"]);
        assert_eq!(units("/system.slice/_cpu.service/payload"), ["system.slice", "cpu.service"]);
        assert_eq!(units(r"/system.slice/dev-a\x2db.swap"), ["system.slice", r"dev-a\x2db.swap"]);
        let user = "/user.slice/user-1000.slice/user@1000.service/app.slice/app.service";
        let all = ["user.slice", "user-1000.slice", "user@1000.service", "app.slice", "app.service"];
        assert_eq!(units(user), all);
        assert_eq!(&*place(user).unit.unwrap().name, "app.service");
        assert_eq!(place(user).unit_in_full().unwrap(), "user@1000:app.service");
        let manager = place("/user.slice/user-1000.slice/user@1000.service");
        assert_eq!(manager.unit_in_full().unwrap(), "user@1000.service");
        assert_eq!(place("/user.slice").unit, None);
        assert_eq!(place("/").units, []);
    }

    #[test]
    fn what_a_service_or_a_container_calls_its_own_groups_is_no_unit() {
        assert_eq!(units("/system.slice/evil.service/nginx.service"), ["system.slice", "evil.service"]);
        assert_eq!(units("/system.slice/evil.service/x.slice"), ["system.slice", "evil.service"]);
        assert_eq!(units("/docker/ID/system.slice/nginx.service"), Vec::<String>::new());
        let fake = "/system.slice/user@1.service/a.service/user@2.service/b.service";
        assert_eq!(place(fake).unit_in_full().unwrap(), "user@1:a.service");
    }

    #[test]
    fn containers_are_known_by_their_groups() {
        for path in [
            "/docker/ID",
            "/system.slice/docker-ID.scope",
            "/system.slice/docker-ID.scope/init.scope",
            "/kubepods/burstable/pod1234/ID",
            "/kubepods.slice/kubepods-pod1234.slice/cri-containerd-ID.scope",
            "/kubepods.slice/kubepods-pod1234.slice/crio-ID.scope/container",
            "/system.slice/kubepods-pod1234.slice:cri-containerd:ID",
            "/machine.slice/libpod-ID.scope/container",
            "/user.slice/user-1.slice/user@1.service/user.slice/libpod-ID.scope",
        ] {
            assert_eq!(&*place(path).container.unwrap().name, ID, "{path}");
        }
        for path in ["/lxc/web", "/lxc.payload/web/x", "/lxc.payload.web/system.slice/a.service"] {
            assert_eq!(&*place(path).container.unwrap().name, "web", "{path}");
        }
        let inside = place(&format!("/docker/ID/docker/{}", "0".repeat(64)));
        assert_eq!(&*inside.container.unwrap().name, ID);
    }

    #[test]
    fn what_only_looks_like_a_container_is_none() {
        for path in [
            "/",
            "/docker",
            "/docker/ID0",
            "/machine.slice/libpod-conmon-ID.scope",
            "/kubepods.slice/crio-conmon-ID.scope",
            "/system.slice/docker-ID.service",
            "/lxc.payload.",
            "/lxc.monitor.web",
        ] {
            assert_eq!(place(path).container, None, "{path}");
        }
        assert_eq!(place(&format!("/docker/{}", ID.to_uppercase())).container, None);
    }

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
