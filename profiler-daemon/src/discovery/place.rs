//! What a control group's path stands for: systemd units and a container.
//!
//! Units are trusted down to the first service or scope, and once more inside a user's manager: below that, the
//! processes name their own control groups and could use another unit's name.

use std::sync::Arc;

use super::places::PlaceId;

/// The step up from our own cgroup namespace. The container runtime makes the groups above containers, so
/// their names can be trusted.
const ABOVE: &str = "..";
/// Digits of a container's id.
const ID_DIGITS: usize = 64;
/// Kinds of systemd's units that hold processes or other units, but slices.
const UNIT_KINDS: [&str; 5] = [".service", ".scope", ".socket", ".mount", ".swap"];

/// A part of a path that stands for something: what it is called, and its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: Arc<str>,
    pub(super) place: PlaceId,
}

/// What names the groups below a group. Groups that a service or a container makes inside its own mean
/// nothing to systemd; otherwise it could use another unit's name.
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
    /// The outermost container; nested ones are ignored.
    pub(super) container: Option<Named>,
    /// The group that it is in.
    pub(super) parent: Option<PlaceId>,
    manager: Manager,
    /// Processes in it and below.
    pub(super) processes: u32,
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

impl Place {
    /// The root of the hierarchy.
    pub(super) fn root() -> Self {
        let path = Arc::from("/");
        let (units, manager) = (Vec::new(), Manager::System);
        Self { path, units, unit: None, container: None, parent: None, manager, processes: 0 }
    }

    /// What the group `name` below this one stands for.
    pub(super) fn below(&self, id: PlaceId, parent: PlaceId, name: &str, path: Arc<str>) -> Self {
        // systemd escapes names that would clash with the kernel's own files.
        let unescaped = name.strip_prefix('_').unwrap_or(name);
        let named = |name: &str| Named { name: name.into(), place: id };
        let mut place = Self { path, parent: Some(parent), processes: 0, ..self.clone() };
        if place.container.is_none() {
            place.container = container(&self.path, name).map(named);
        }
        if self.manager == Manager::None || name == ABOVE {
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

/// The id or name of the container that a group's name stands for. Docker, containerd, CRI-O and Podman use the id,
/// after the engine's name if systemd creates the group; LXC uses a name.
fn container<'n>(above: &str, name: &'n str) -> Option<&'n str> {
    if let Some(name) = name.strip_prefix("lxc.payload.").filter(|name| !name.is_empty()) {
        return Some(name);
    }
    if matches!(above, "/lxc" | "/lxc.payload") {
        return Some(name);
    }
    let scope = name.strip_suffix(".scope").unwrap_or(name);
    let id = scope.rsplit(['-', ':']).next().filter(|id| is_id(id))?;
    // A container's monitor process has a group named after the id, too, but is not in the container.
    let engine = scope[..scope.len() - id.len()].trim_end_matches(['-', ':']);
    (!engine.ends_with("conmon")).then_some(id)
}

fn is_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::super::places::Places;
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
        assert_eq!(units("/../../system.slice/nginx.service"), ["system.slice", "nginx.service"]);
        assert_eq!(units("/../ID/system.slice/nginx.service"), Vec::<String>::new());
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
            "/../../kubepods-pod1234.slice/cri-containerd-ID.scope",
            "/../ID",
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
}
