//! What was typed after `push`, checked. No error shows a header or a token.

use std::collections::BTreeMap;

use anyhow::Result;
use ureq::http::header::AUTHORIZATION;

use crate::cli::PushArgs;
use crate::failure::usage;
use crate::push::{PushAccess, PushJob, PushNaming, Receiver, certificates, header_of, token};

/// What was typed, checked.
///
/// # Errors
///
/// A usage error for what cannot be meant; any other for a file that cannot be used.
pub(super) fn job(args: PushArgs) -> Result<PushJob> {
    if args.timeout.duration().is_zero() {
        return Err(usage("--timeout 0s leaves no time; give one such as 30s"));
    }
    if args.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
        return Err(usage("--name is empty; leave it out to use each profile's target"));
    }
    let receiver = Receiver::new(&args.to, args.format)?;
    let mut headers = args.header.iter().map(|text| header_of(text)).collect::<Result<Vec<_>>>()?;
    if let Some(path) = &args.token_file {
        if headers.iter().any(|(name, _)| name == AUTHORIZATION) {
            return Err(usage("--token-file and --header both give an Authorization; leave one out"));
        }
        headers.push((AUTHORIZATION, token(path)?));
    }
    let authorities = args.ca_file.as_deref().map(certificates).transpose()?;
    let access = PushAccess { headers, authorities, timeout: args.timeout.duration() };
    let labels: BTreeMap<_, _> = args.label.into_iter().collect();
    Ok(PushJob { files: args.files, receiver, access, naming: PushNaming { service: args.name, labels } })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn typed(words: &[&str]) -> Result<PushJob> {
        let cli = Cli::try_parse_from([&["sweetspot", "push", "x.pb.gz"], words].concat())?;
        let Command::Push(args) = cli.command else { panic!("another command") };
        job(args)
    }

    fn error(words: &[&str]) -> String {
        format!("{:#}", typed(words).unwrap_err())
    }

    #[test]
    fn secrets_are_in_no_error_and_in_no_debug_text() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "s3cret\n").unwrap();
        let token_file = file.to_str().unwrap();
        let to = ["--to", "http://localhost:4040"];
        let all =
            typed(&[&to[..], &["--token-file", token_file, "--header", "x-key: s3cret"]].concat()).unwrap();
        assert_eq!(all.access.headers.len(), 2);
        assert_eq!(all.access.headers[1].1, "Bearer s3cret");
        assert!(!format!("{all:?}").contains("s3cret"));
        for words in [
            &["--header", "s3cret"][..],
            &["--header", "a b: s3cret"],
            &["--header", "x: s3cret\u{7}"],
            &["--header", "content-type: s3cret"],
            &["--header", "authorization: s3cret", "--token-file", token_file],
            &["--to", "http://me:s3cret@localhost"],
            &["--to", "http://localhost/?key=s3cret"],
            &["--to", "ftp://s3cret"],
        ] {
            let error = error(&if words[0] == "--to" { words.to_vec() } else { [&to[..], words].concat() });
            assert!(!error.contains("s3cret") && !error.is_empty(), "{words:?}: {error}");
        }
        std::fs::write(&file, "s3cret two\n").unwrap();
        let error = error(&[&to[..], &["--token-file", token_file]].concat());
        assert!(error.contains("holds no token") && !error.contains("s3cret"), "{error}");
    }

    #[test]
    fn files_that_are_none_of_what_they_should_be_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, vec![b'x'; 5000]).unwrap();
        let path = file.to_str().unwrap();
        let to = |words: [&str; 2]| error(&[&["--to", "http://localhost"][..], &words].concat());
        assert!(to(["--token-file", path]).contains("more than 4096 bytes"));
        assert!(to(["--ca-file", path]).contains("holds no certificate"));
        assert!(to(["--ca-file", "/nowhere/ca.pem"]).contains("cannot be read"));
        assert!(to(["--timeout", "0s"]).contains("leaves no time"));
        assert!(to(["--name", " "]).contains("--name is empty"));
    }
}
