//! What tells functions of one short name apart, where only the linkage name has it: their module or the like.

/// The name as the language qualifies it, by the function's linkage name and its short name in the source. None where the former
/// says no more, as in C: `__GI_abort` is `abort`.
pub(crate) fn qualified(linkage: &str, plain: &str) -> Option<String> {
    fortran(linkage).or_else(|| intel_fortran(linkage, plain)).or_else(|| d(linkage, plain)).or_else(|| {
        // Zig, and whoever else joins names so.
        let is_path = linkage.strip_suffix(plain).is_some_and(|path| path.len() > 1 && path.ends_with('.'));
        (is_path && !plain.is_empty()).then(|| linkage.to_owned())
    })
}

/// A procedure of a Fortran module: `__heat_MOD_solve` as GNU has it, `_QMheatPsolve` as LLVM has it.
pub(crate) fn fortran(linkage: &str) -> Option<String> {
    if let Some((module, procedure)) = linkage.strip_prefix("__").and_then(|rest| rest.split_once("_MOD_")) {
        return (!module.is_empty() && !procedure.is_empty()).then(|| format!("{module}::{procedure}"));
    }
    let path = linkage.strip_prefix("_QM")?;
    // Names are lower case; a capital says what the next one is: submodule, function around it, procedure.
    let is_known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_MSFP".contains(c);
    let parts: Vec<&str> = path.split(|c: char| c.is_ascii_uppercase()).collect();
    (path.chars().all(is_known) && parts.len() > 1 && parts.iter().all(|part| !part.is_empty()))
        .then(|| parts.join("::"))
}

fn intel_fortran(linkage: &str, plain: &str) -> Option<String> {
    let lower = plain.to_ascii_lowercase();
    let module = linkage.strip_suffix('_')?.strip_suffix(&lower)?.strip_suffix("_mp_")?;
    (!module.is_empty() && !plain.is_empty()).then(|| format!("{module}::{lower}"))
}

/// A function of D: `_D3one5solveFKdlZv` is `one.solve`. Its path in front of it must lead to the short name, else it is that
/// of a function around it.
fn d(linkage: &str, plain: &str) -> Option<String> {
    let mut rest = linkage.strip_prefix("_D")?;
    let stem = plain.split(['!', '(']).next().filter(|stem| !stem.is_empty())?;
    let mut path: Vec<&str> = Vec::new();
    loop {
        rest = rest.strip_prefix("__T").or(rest.strip_prefix("__U")).unwrap_or(rest);
        let Some((name, after)) = length_prefixed(rest) else { break };
        if let Some(template) = name.strip_prefix("__T").and_then(length_prefixed) {
            path.push(template.0); // as earlier compilers have it
            break;
        }
        path.push(name);
        rest = after;
    }
    let last = path.pop()?;
    match () {
        _ if last == stem && !path.is_empty() => Some(format!("{}.{plain}", path.join("."))),
        // A function within another one, a constructor or the like.
        _ => (!plain.starts_with("D ")).then(|| linkage.to_owned()),
    }
}

/// A name behind its length, and what follows.
fn length_prefixed(text: &str) -> Option<(&str, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let length: usize = text[..digits].parse().ok()?;
    text[digits..].split_at_checked(length).filter(|(name, _)| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_linkage_name_says_the_module() {
        for (linkage, plain, expected) in [
            ("__heat_MOD_solve", "solve", "heat::solve"),
            ("_QMheatPsolve", "solve", "heat::solve"),
            ("_QMheatSinnerFouterPsolve_2", "solve_2", "heat::inner::outer::solve_2"),
            ("heat_mp_solve_", "SOLVE", "heat::solve"),
            ("_D3one5solveFKdlZv", "solve", "one.solve"),
            ("_D3one1S4stepMFKdlZv", "step", "one.S.step"),
            ("_D3one__T5twiceTdZQkFNaNbNiNfdlZd", "twice!double", "one.twice!double"),
            ("_D3one12__T5twiceTdZ5twiceFdlZd", "twice", "one.twice"),
            ("main.Grid.solve", "solve", "main.Grid.solve"),
        ] {
            assert_eq!(qualified(linkage, plain).as_deref(), Some(expected), "{linkage}");
        }
    }

    #[test]
    fn a_name_within_a_function_stays_mangled_and_apart() {
        let inner = "_D4main5outerFZ5solveMFZv";
        assert_eq!(qualified(inner, "solve").as_deref(), Some(inner));
    }

    #[test]
    fn names_given_by_hand_say_no_more() {
        for (linkage, plain) in [
            ("__GI_abort", "abort"),
            ("solve_", "solve"),
            ("solve.isra.0", "solve"),
            ("MAIN__", "heat"),
            ("_Dmain", "D main"),
            ("_QQmain", "main"),
            ("_QMheat", "heat"),
            ("__MOD_", ""),
            ("_mp_solve_", "solve"),
            (".solve", "solve"),
            ("", ""),
        ] {
            assert_eq!(qualified(linkage, plain), None, "{linkage}");
        }
    }

    proptest! {
        #[test]
        fn no_name_panics(linkage in "(_D|__|_QM)?[0-9a-zA-Z_.é]{0,20}", plain in "[a-zé!(]{0,4}") {
            let _ = qualified(&linkage, &plain);
        }
    }
}
