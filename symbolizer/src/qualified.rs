//! What tells functions of one short name apart, where only the linkage name has it: their module or the like.

use crate::dlang;

/// The name as the language qualifies it, by the function's linkage name and its short name in the source. None where the former
/// says no more, as in C: `__GI_abort` is `abort`.
pub(crate) fn qualified(linkage: &str, plain: &str) -> Option<String> {
    fortran(linkage)
        .or_else(|| intel_fortran(linkage, plain))
        .or_else(|| dlang::function(linkage, plain))
        .or_else(|| pascal(linkage, plain))
        .or_else(|| {
            // Zig, and whoever else joins names so.
            let is_path =
                linkage.strip_suffix(plain).is_some_and(|path| path.len() > 1 && path.ends_with('.'));
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

/// A routine of Free Pascal: `P$MAIN$_$TGRID_$__$$_SOLVE$LONGINT` is `TGRID.Solve(LONGINT)`. The program that it is in is left out, a
/// unit is not. Types are as the linkage name has them, or a checksum of them.
fn pascal(linkage: &str, plain: &str) -> Option<String> {
    let (scope, routine) = linkage.rsplit_once("_$$_")?;
    let (name, types) = routine.split_at_checked(plain.len())?;
    if !name.eq_ignore_ascii_case(plain) || plain.is_empty() || !(types.is_empty() || types.starts_with('$'))
    {
        return None;
    }
    let is_of_program = scope.starts_with("P$");
    let scope = scope.strip_prefix("P$").unwrap_or(scope);
    let scope = scope.replace("_$$_", "$_$");
    let parts = scope.split("$_$").map(|part| part.trim_end_matches("_$_"));
    let parts = parts.skip(usize::from(is_of_program)).filter(|part| !part.is_empty());
    let path: String = parts.map(|part| spelled(part) + ".").collect();
    Some(path + plain + &spelled(types))
}

/// `$A$B$$C` of a routine, or of one around it: its parameters' types and its result's.
fn spelled(routine: &str) -> String {
    let Some((name, types)) = routine.split_once('$') else { return routine.to_owned() };
    let (parameters, result) = match types.strip_prefix('$') {
        Some(result) => ("", Some(result)),
        None => types.split_once("$$").map_or((types, None), |(types, result)| (types, Some(result))),
    };
    let result = result.map(|result| format!(": {result}")).unwrap_or_default();
    format!("{name}({}){result}", parameters.replace('$', ", "))
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
            ("_D3one5solveFKdlZv", "solve", "one.solve(ref double, long)"),
            ("_D3one__T5twiceTdZQjFNaNbNiNfdlZd", "twice!double", "one.twice!double(double, long)"),
            ("P$M_$$_SOLVE$LONGINT", "Solve", "Solve(LONGINT)"),
            ("P$M_$$_SOLVE$DOUBLE$QWORD$$BOOLEAN", "Solve", "Solve(DOUBLE, QWORD): BOOLEAN"),
            ("P$M$_$TA_$__$$_RUN", "Run", "TA.Run"),
            ("P$M$_$OUTER1_$$_INNER", "Inner", "OUTER1.Inner"),
            (
                "SYSTEM$_$VAL$INT64$$EXTENDED_$$_COUNT$QWORD",
                "Count",
                "SYSTEM.VAL(INT64): EXTENDED.Count(QWORD)",
            ),
            ("SYSTEM_$$_INIT", "init", "SYSTEM.init"),
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
            ("P$M_$$_SOLVER", "solve"),
            ("_$$_", ""),
            (".solve", "solve"),
            ("", ""),
        ] {
            assert_eq!(qualified(linkage, plain), None, "{linkage}");
        }
    }

    proptest! {
        #[test]
        fn no_name_panics(linkage in "(_D|__|_QM|P[$]A_[$][$]_)?[0-9a-zA-Z_.$é]{0,20}", plain in "[a-zé!(]{0,4}") {
            let _ = qualified(&linkage, &plain);
        }
    }
}
