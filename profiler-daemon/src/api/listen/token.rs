//! The token for requests over the network.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use subtle::ConstantTimeEq;

use crate::failure::Failure;
use crate::sys::root::{Link, open_regular};

/// Fewest characters: 128 bits, in hexadecimal.
const MIN: usize = 32;
/// Most characters: a header line holds no more.
const MAX: usize = 4096;

/// The secret. It is shown nowhere.
pub(in crate::api) struct Token(Vec<u8>);

impl Token {
    /// Whether this is it, in a time that does not depend on where it differs.
    pub(in crate::api) fn is(&self, shown: &[u8]) -> bool {
        self.0.ct_eq(shown).into()
    }
}

/// Reads the token in `path`.
///
/// # Errors
///
/// If it cannot be read, is too short, or others than its owner may read it too.
pub(super) fn read(path: &Path) -> Result<Token> {
    let shown = path.display();
    let cannot = |error: std::io::Error| {
        let text = format!(
            "{shown} cannot be read ({error}); put a token into it: openssl rand -hex 32 | \
             install -m 600 /dev/stdin {shown}"
        );
        match error.kind() {
            ErrorKind::PermissionDenied => Failure::NotPermitted(text).into(),
            _ => anyhow!(text),
        }
    };
    // A pipe would be waited for.
    let mut file = open_regular(path, Link::Follow).map_err(cannot)?;
    check_access(path, &file)?;
    let mut text = Vec::new();
    file.by_ref().take(MAX as u64 + 2).read_to_end(&mut text).map_err(cannot)?;
    let token = text.trim_ascii();
    if !(MIN..=MAX).contains(&token.len()) || !token.iter().all(u8::is_ascii_graphic) {
        bail!(
            "{shown} holds no token: write one line of {MIN} to {MAX} letters, digits or marks, such as \
             `openssl rand -hex 32` prints"
        );
    }
    Ok(Token(token.to_vec()))
}

fn check_access(path: &Path, file: &File) -> Result<()> {
    let shown = path.display();
    let found = file.metadata().map_err(|error| anyhow!("{shown} cannot be looked at ({error})"))?;
    let mode = found.mode() & 0o777;
    if mode & 0o077 != 0 {
        bail!(
            "{shown} can be read or changed by others (mode {mode:04o}), and a token is a secret; chmod 600 {shown}"
        );
    }
    let owner = found.uid();
    if owner != 0 && owner != nix::unistd::geteuid().as_raw() {
        return Err(Failure::NotPermitted(format!(
            "{shown} belongs to user {owner}, who can read the token; give it to the user that sweetspot runs as"
        ))
        .into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn reading(text: &str, mode: u32) -> Result<Token> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        read(&path)
    }

    #[test]
    fn a_token_is_long_and_its_owner_s_alone() {
        let sound = "0123456789abcdef0123456789abcdef";
        let token = reading(&format!("{sound}\n"), 0o600).unwrap();
        assert!(token.is(sound.as_bytes()));
        for other in ["", "0", &sound[1..], &format!("{sound}0"), &sound.replace('0', "1")] {
            assert!(!token.is(other.as_bytes()), "{other}");
        }
        assert!(reading(sound, 0o400).is_ok());
        for mode in [0o640, 0o604, 0o660, 0o620] {
            let error = reading(sound, mode).err().unwrap().to_string();
            assert!(error.contains("chmod 600"), "{error}");
        }
        for text in
            ["", "short", &sound[1..], &format!("{sound}\n{sound}"), &"x".repeat(MAX + 1), &"é".repeat(40)]
        {
            assert!(reading(text, 0o600).is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_that_is_none_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read(&folder.path().join("missing")).is_err());
        assert!(read(folder.path()).is_err());
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(read(&pipe).is_err());
    }
}
