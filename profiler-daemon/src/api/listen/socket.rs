//! The Unix socket: made with the rights that the settings give it, and removed again.

use std::fs::{self, DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use config::ListenSettings;
use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use nix::unistd::{Gid, Group, geteuid, getgroups};

use crate::failure::Failure;
use crate::sys::peer::Peer;

/// Who may use the socket. The kernel asks its mode when somebody connects, and we ask again who that was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::api) struct PeerRule {
    mode: u32,
    /// The group whose members may.
    group: Option<u32>,
    /// What is not as the settings want it.
    pub(in crate::api) note: Option<String>,
}

impl PeerRule {
    /// What the settings say.
    ///
    /// # Errors
    ///
    /// If there is no such group, unless it is the one that is in force without any settings.
    pub(super) fn of(settings: &ListenSettings) -> Result<Self> {
        Self::for_user(settings, may_give)
    }

    /// The same for a user who may give a file to the groups that `may_give` says.
    fn for_user(settings: &ListenSettings, may_give: impl Fn(Gid) -> bool) -> Result<Self> {
        let name = &settings.group;
        let mode = settings.mode.bits();
        let is_default = *name == ListenSettings::default().group;
        let alone = |why: String| Self { mode: mode & 0o700, group: None, note: Some(why) };
        let found =
            Group::from_name(name).with_context(|| format!("the group {name} cannot be looked up"))?;
        match found {
            Some(group) if may_give(group.gid) => {
                Ok(Self { mode, group: Some(group.gid.as_raw()), note: None })
            }
            Some(_) if is_default => Ok(alone(format!(
                "sweetspot is not in the group {name}: only this user and root can use the socket; \
                 run it as a member of the group"
            ))),
            Some(_) => Err(Failure::NotPermitted(format!(
                "the socket cannot be given to the group {name}, which this user is not in; run as root, or write another listen.group"
            ))
            .into()),
            None if is_default => Ok(alone(format!(
                "there is no group {name}: only this user and root can use the socket; \
                 `groupadd --system {name}` and restart to give its members access"
            ))),
            None => bail!(
                "there is no group {name}; write one that exists as listen.group (`getent group` lists them)"
            ),
        }
    }

    /// Whether this peer may ask.
    pub(in crate::api) fn admits(&self, peer: &Peer) -> bool {
        let is_member = || self.group.is_some_and(|group| peer.groups.contains(&group));
        peer.user == 0 || peer.user == geteuid().as_raw() || (self.mode & 0o020 != 0 && is_member())
    }

    /// Gives the socket its owner and mode. The group comes first: until then nobody of a group may write to it.
    fn apply(&self, path: &Path) -> Result<()> {
        let give = || {
            if let Some(group) = self.group {
                chown(path, None, Some(group))?;
            }
            fs::set_permissions(path, Permissions::from_mode(self.mode))
        };
        give().map_err(|error: std::io::Error| {
            anyhow!("the rights of {} cannot be set ({error}); write another listen.socket", path.display())
        })
    }
}

/// Whether a file of ours can be given to the group.
fn may_give(group: Gid) -> bool {
    let ours = || getgroups().is_ok_and(|groups| groups.contains(&group));
    geteuid().is_root() || nix::unistd::getegid() == group || ours()
}

/// The place of a socket, as long as it is ours.
#[derive(Debug)]
pub(in crate::api) struct SocketPlace {
    path: PathBuf,
    /// Device and inode: another daemon may have put its own there.
    identity: (u64, u64),
}

impl SocketPlace {
    /// Where it is.
    pub(in crate::api) fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the rights anew.
    ///
    /// # Errors
    ///
    /// If that is not permitted.
    pub(in crate::api) fn set_rights(&self, rule: &PeerRule) -> Result<()> {
        rule.apply(&self.path)
    }
}

impl Drop for SocketPlace {
    fn drop(&mut self) {
        if identity(&self.path).is_some_and(|found| found == self.identity) {
            let _ = fs::remove_file(&self.path); // nobody is left to tell
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Listens at `path`.
///
/// # Errors
///
/// If another daemon answers there, something else has the name, or it is not permitted.
pub(in crate::api) fn listen(path: &Path, rule: &PeerRule) -> Result<(UnixListener, SocketPlace)> {
    let shown = path.display();
    make_folder(path)?;
    remove_stale(path)?;
    let listen = || {
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok::<_, std::io::Error>(listener)
    };
    let listener = listen()
        .map_err(|error| anyhow!("{shown} cannot be made ({error}); write another path as listen.socket"))?;
    let identity =
        identity(path).ok_or_else(|| anyhow!("{shown} was removed as it was made; start again"))?;
    let place = SocketPlace { path: path.to_owned(), identity };
    rule.apply(path)?;
    Ok((listener, place))
}

fn make_folder(path: &Path) -> Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(|error| {
        anyhow!("{} cannot be made ({error}); write another path as listen.socket", folder.display())
    })
}

/// Removes what a daemon left that did not end by itself.
fn remove_stale(path: &Path) -> Result<()> {
    let shown = path.display();
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.map_err(|error| anyhow!("{shown} cannot be looked at ({error})"))?,
    };
    if !found.file_type().is_socket() {
        return no_socket(path);
    }
    match try_connect(path) {
        // With EAGAIN its queue is full: somebody is there.
        Ok(()) | Err(Errno::EAGAIN) => {
            bail!("another sweetspot answers at {shown}; stop it, or write another path as listen.socket")
        }
        Err(_) => match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(anyhow!("{shown} is left from an earlier run and cannot be removed ({error}); remove it"))
            }
            _ => Ok(()),
        },
    }
}

/// Whether a socket can be made at `path`, or can take the place of the one that is there.
///
/// # Errors
///
/// If something else has the name.
pub(super) fn check_place(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => no_socket(path),
        _ => Ok(()),
    }
}

fn no_socket(path: &Path) -> Result<()> {
    bail!("{} is not a socket; remove it, or write another path as listen.socket", path.display())
}

/// Connects without waiting: one that is stopped would let us wait for ever.
fn try_connect(path: &Path) -> nix::Result<()> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    socket::connect(socket.as_raw_fd(), &UnixAddr::new(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The daemon may run as another user than `check-config`, which only warns of it then.
    #[test]
    fn a_group_that_this_user_is_not_in_is_a_missing_permission() {
        let settings = ListenSettings { group: "root".to_owned(), ..ListenSettings::default() };
        let error = PeerRule::for_user(&settings, |_| false).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(Failure::NotPermitted(_))), "{error:#}");
        assert!(error.to_string().contains("the group root"), "{error:#}");
        let settings = ListenSettings { group: "no such group".to_owned(), ..ListenSettings::default() };
        let error = PeerRule::for_user(&settings, |_| false).unwrap_err();
        assert!(error.downcast_ref::<Failure>().is_none(), "{error:#}");
    }
}
