//! Manual pages and completions for shells, made of the command line's own definition, so that they cannot drift from it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;

use crate::cli::Cli;

/// Writes `man/sweetspot.1` and a page for each command, and `completions/` for bash, zsh and fish.
///
/// # Errors
///
/// If the folder cannot be written to.
pub(crate) fn write(folder: &Path) -> Result<()> {
    let written = || -> std::io::Result<()> {
        let [pages, completions] = ["man", "completions"].map(|name| folder.join(name));
        fs::create_dir_all(&pages)?;
        fs::create_dir_all(&completions)?;
        // The help of a command is its page; a page for `help` would say nothing.
        let mut program = Cli::command().disable_help_subcommand(true).propagate_version(true);
        program.build();
        write_pages(&program, &pages)?;
        [Shell::Bash, Shell::Zsh, Shell::Fish].into_iter().try_for_each(|shell| {
            generate_to(shell, &mut Cli::command(), "sweetspot", &completions).map(drop)
        })
    };
    written().with_context(|| format!("{} cannot be written to; give another folder", folder.display()))
}

/// A command's page and those of its commands.
fn write_pages(command: &Command, folder: &Path) -> std::io::Result<()> {
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.into_iter().try_for_each(|command| write_pages(command, folder))?;
    let source = format!("Sweetspot {}", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone()).manual("User Commands").source(source).generate_to(folder).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn every_command_that_is_shown_has_a_page_and_is_completed() {
        let folder = tempfile::TempDir::new().unwrap();
        write(folder.path()).unwrap();
        let pages = names(&folder.path().join("man"));
        let completions = folder.path().join("completions");
        assert_eq!(names(&completions), ["_sweetspot", "sweetspot.bash", "sweetspot.fish"]);
        assert!(pages.contains(&"sweetspot.1".to_owned()), "{pages:?}");
        let bash = fs::read_to_string(completions.join("sweetspot.bash")).unwrap();
        let program = Cli::command();
        let (hidden, shown): (Vec<_>, Vec<_>) = program.get_subcommands().partition(|c| c.is_hide_set());
        for command in shown {
            let page = format!("sweetspot-{}.1", command.get_name());
            let text = fs::read_to_string(folder.path().join("man").join(&page)).unwrap();
            assert!(text.contains("User Commands") && text.contains(".SH SYNOPSIS"), "{text}");
            assert!(bash.contains(command.get_name()), "{page}");
        }
        for command in hidden {
            assert!(!pages.contains(&format!("sweetspot-{}.1", command.get_name())), "{pages:?}");
        }
    }
}
