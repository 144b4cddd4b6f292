//! Names of functions that have no linkage name, from where they are declared: `(anonymous namespace)::Grid::solve(int)`.
//!
//! C++ names are spelled as the demangled names of the same functions are, so that a function which is inlined here and
//! called there has one name.

use std::sync::Arc;

use gimli::{AttributeValue, DwTag, UnitOffset};

use super::names::text;
use super::scopes::Scopes;
use super::{Lookup, UnitPlace};

/// Steps that one name may take: entries, and 64 bytes of text each. Entries may refer to each other in circles.
const MOST_STEPS: u32 = 4000;
/// Types within types, and functions within functions.
const MOST_NESTED: u32 = 24;
/// As of other names.
const LONGEST_OUTPUT: usize = 16 << 10;

/// An entry: where its unit is, the unit, and the offset in it.
pub(super) type Place = (UnitPlace, usize, usize);

/// What is left of the steps that a name may take.
pub(super) struct Steps {
    left: u32,
    nested: u32,
}

impl Steps {
    pub(super) fn new() -> Self {
        Self { left: MOST_STEPS, nested: 0 }
    }

    fn take(&mut self, steps: usize) -> Option<()> {
        self.left = self.left.checked_sub(u32::try_from(steps).ok()?)?;
        Some(())
    }

    fn within<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        (self.nested < MOST_NESTED).then_some(())?;
        self.nested += 1;
        let found = read(self);
        self.nested -= 1;
        found
    }
}

/// How a language writes a function's scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// With namespaces, classes and the types of parameters. Functions without a mangled name are C's.
    Cpp,
    /// The names around it, and this between them.
    Path(&'static str),
}

impl Spelling {
    /// Of a language whose functions may have no linkage name, and whose short names do not say where they are.
    fn of(language: gimli::DwLang) -> Option<Self> {
        match language {
            gimli::DW_LANG_C_plus_plus
            | gimli::DW_LANG_C_plus_plus_03
            | gimli::DW_LANG_C_plus_plus_11
            | gimli::DW_LANG_C_plus_plus_14
            | gimli::DW_LANG_C_plus_plus_17
            | gimli::DW_LANG_C_plus_plus_20
            | gimli::DW_LANG_ObjC_plus_plus => Some(Self::Cpp),
            gimli::DW_LANG_C
            | gimli::DW_LANG_C89
            | gimli::DW_LANG_C99
            | gimli::DW_LANG_C11
            | gimli::DW_LANG_C17
            | gimli::DW_LANG_Fortran77
            | gimli::DW_LANG_Fortran90
            | gimli::DW_LANG_Fortran95
            | gimli::DW_LANG_Fortran03
            | gimli::DW_LANG_Fortran08
            | gimli::DW_LANG_Fortran18 => Some(Self::Path("::")),
            gimli::DW_LANG_Pascal83 => Some(Self::Path(".")),
            _ => None,
        }
    }
}

/// What an entry says that names need.
#[derive(Default)]
struct Described {
    tag: Option<DwTag>,
    name: Option<Arc<str>>,
    ty: Option<Place>,
    origin: Option<Place>,
    is_external: bool,
    is_artificial: bool,
    file: Option<u64>,
    line: Option<u64>,
    column: Option<u64>,
    children: Option<usize>,
}

impl Lookup<'_, '_> {
    /// How the language of a unit writes scopes.
    pub(super) fn spelling(&self, place: UnitPlace, unit: usize) -> Option<Spelling> {
        let read = self.unit(place, unit).ok()?;
        let mut entries = read.entries_raw(None).ok()?;
        let root = entries.read_abbreviation().ok()??;
        for spec in root.attributes() {
            let attribute = entries.read_attribute(*spec).ok()?;
            if let (gimli::DW_AT_language, AttributeValue::Language(language)) =
                (attribute.name(), attribute.value())
            {
                return Spelling::of(language);
            }
        }
        None
    }

    /// The name of the function whose declaration is at `entry`, with what it is declared in. None if that says no more
    /// than the short name.
    pub(super) fn spelled(
        &self,
        entry: Place,
        plain: &str,
        spelling: Spelling,
        steps: &mut Steps,
    ) -> Option<String> {
        let scope = self.scope_of(entry, spelling, plain, steps)?;
        let mut name = match (spelling, scope.is_empty()) {
            (Spelling::Path(_), true) => return None,
            (Spelling::Path(between), false) => format!("{scope}{between}{plain}"),
            (Spelling::Cpp, true) => plain.to_owned(),
            (Spelling::Cpp, false) => format!("{scope}::{plain}"),
        };
        if spelling == Spelling::Cpp {
            let function = self.describe(entry, steps)?;
            if function.is_external && scope.is_empty() {
                return None; // C's: others have a linkage name
            }
            name += &self.parameters(entry, &function, steps).unwrap_or_else(|| "(...)".to_owned());
            if is_template(plain) {
                let returned = function.ty.map_or(Some("void".to_owned()), |ty| self.type_name(ty, steps))?;
                name = format!("{returned} {name}");
            }
        }
        (name.len() <= LONGEST_OUTPUT).then_some(name)
    }

    /// The names of what an entry is declared in, from the outermost on.
    fn scope_of(
        &self,
        mut entry: Place,
        spelling: Spelling,
        plain: &str,
        steps: &mut Steps,
    ) -> Option<String> {
        let between = if let Spelling::Path(between) = spelling { between } else { "::" };
        let mut parts: Vec<String> = Vec::new();
        while let Some(around) = self.scopes(entry.0, entry.1)?.around(entry.2) {
            let mut scope = (entry.0, entry.1, around);
            let mut described = self.describe(scope, steps)?;
            if described.tag == Some(gimli::DW_TAG_subprogram) {
                parts.push(steps.within(|steps| self.name_within(scope, spelling, steps))?);
                break;
            }
            // A class may be defined elsewhere than it was declared.
            let mut name = described.name.take();
            while let Some(declared) = described.origin {
                scope = declared;
                described = self.describe(scope, steps)?;
                name = name.or(described.name.take());
            }
            let is_lambda = parts.is_empty() && plain == "operator()";
            parts.push(match (name, described.tag) {
                (Some(name), _) => name.to_string(),
                (None, Some(gimli::DW_TAG_namespace)) => "(anonymous namespace)".to_owned(),
                (None, _) => {
                    self.unnamed(scope, &described, if is_lambda { "lambda" } else { "unnamed type" })
                }
            });
            entry = scope;
        }
        parts.reverse();
        let scope = parts.join(between);
        (scope.len() <= LONGEST_OUTPUT).then_some(scope)
    }

    /// The name of a function that others are declared in.
    fn name_within(&self, function: Place, spelling: Spelling, steps: &mut Steps) -> Option<String> {
        let (place, unit, entry) = function;
        let name = self.name_with(place, unit, entry, Some(spelling), steps)?;
        name.readable().map(|name| name.to_string())
    }

    fn unnamed(&self, scope: Place, described: &Described, what: &str) -> String {
        let Some(line) = described.line else { return format!("{{{what}}}") };
        let file = described.file.and_then(|file| self.file_name(scope, file)).unwrap_or_default();
        let column = described.column.map(|column| format!(":{column}")).unwrap_or_default();
        format!("{{{what} at {file}:{line}{column}}}")
    }

    /// The last part of a file's path.
    fn file_name(&self, of: Place, file: u64) -> Option<String> {
        let unit = self.unit(of.0, of.1).ok()?;
        let path = unit.line_program.as_ref()?.header().file(file)?.path_name();
        let path = text(&self.dwarf(of.0).attr_string(&unit, path).ok()?)?;
        Some(path.rsplit('/').next().unwrap_or_default().to_owned())
    }

    /// The types of a function's parameters, as a demangled name has them.
    fn parameters(&self, entry: Place, function: &Described, steps: &mut Steps) -> Option<String> {
        let unit = self.unit(entry.0, entry.1).ok()?;
        let mut types = Vec::new();
        let mut is_const = false;
        if let Some(first) = function.children {
            let mut entries = unit.entries_raw(Some(UnitOffset(first))).ok()?;
            let mut depth = 0u32;
            let mut offset = first;
            while let Some(abbreviation) = match entries.read_abbreviation().ok()? {
                None if depth == 0 => None,
                found => Some(found),
            } {
                steps.take(1)?;
                let at = std::mem::replace(&mut offset, entries.next_offset().0);
                match abbreviation {
                    None => depth -= 1,
                    Some(abbreviation) => {
                        entries.skip_attributes(abbreviation.attributes()).ok()?;
                        match abbreviation.tag() {
                            gimli::DW_TAG_formal_parameter if depth == 0 => {
                                let parameter = self.describe((entry.0, entry.1, at), steps)?;
                                let is_this = parameter.is_artificial
                                    || parameter.name.as_deref().is_some_and(|name| name == "__closure");
                                if is_this && types.is_empty() {
                                    is_const = self.is_const_object(parameter.ty?, steps)?;
                                } else if !is_this {
                                    types.push(
                                        steps.within(|steps| self.parameter_type(parameter.ty?, steps))?,
                                    );
                                }
                            }
                            gimli::DW_TAG_unspecified_parameters if depth == 0 => {
                                types.push("...".to_owned())
                            }
                            // What comes next are variables and the like.
                            gimli::DW_TAG_lexical_block | gimli::DW_TAG_variable if depth == 0 => break,
                            _ => {}
                        }
                        depth += u32::from(abbreviation.has_children());
                    }
                }
                offset = entries.next_offset().0;
            }
        }
        Some(format!("({}){}", types.join(", "), if is_const { " const" } else { "" }))
    }

    /// Whether `this` points to what a method cannot change.
    fn is_const_object(&self, this: Place, steps: &mut Steps) -> Option<bool> {
        let mut described = self.describe(this, steps)?;
        if described.tag == Some(gimli::DW_TAG_const_type) {
            described = self.describe(described.ty?, steps)?;
        }
        let Some(object) = described.ty else { return Some(false) };
        Some(self.describe(object, steps)?.tag == Some(gimli::DW_TAG_const_type))
    }

    /// A parameter's own `const` and `volatile` are no part of its function's type.
    fn parameter_type(&self, mut ty: Place, steps: &mut Steps) -> Option<String> {
        loop {
            let described = self.describe(ty, steps)?;
            let is_qualifier =
                matches!(described.tag?, gimli::DW_TAG_const_type | gimli::DW_TAG_volatile_type);
            match described.ty.filter(|_| is_qualifier) {
                Some(inner) => ty = inner,
                None => return self.type_name(ty, steps),
            }
        }
    }

    /// A type, as a demangled name has it: what qualifies it behind it, and no typedef.
    fn type_name(&self, ty: Place, steps: &mut Steps) -> Option<String> {
        let described = self.describe(ty, steps)?;
        let suffix = match described.tag? {
            gimli::DW_TAG_const_type => " const",
            gimli::DW_TAG_volatile_type => " volatile",
            gimli::DW_TAG_pointer_type => "*",
            gimli::DW_TAG_reference_type => "&",
            gimli::DW_TAG_rvalue_reference_type => "&&",
            gimli::DW_TAG_typedef => "",
            gimli::DW_TAG_base_type | gimli::DW_TAG_unspecified_type => {
                return Some(base_type(described.name.as_deref()?).to_owned());
            }
            gimli::DW_TAG_subroutine_type => {
                let returned = match described.ty {
                    Some(ty) => steps.within(|steps| self.type_name(ty, steps))?,
                    None => "void".to_owned(),
                };
                let parameters = steps.within(|steps| self.parameters(ty, &described, steps))?;
                return Some(format!("{returned} {parameters}"));
            }
            gimli::DW_TAG_class_type
            | gimli::DW_TAG_structure_type
            | gimli::DW_TAG_union_type
            | gimli::DW_TAG_enumeration_type => return self.type_path(ty, described, steps),
            _ => return None,
        };
        let inner = match described.ty {
            Some(inner) => steps.within(|steps| self.type_name(inner, steps))?,
            None => "void".to_owned(),
        };
        let name = match inner.split_once(" (") {
            // A pointer to a function.
            Some((returned, parameters)) if suffix == "*" && parameters.ends_with(')') => {
                format!("{returned} (*)({parameters}")
            }
            _ => inner + suffix,
        };
        steps.take(name.len() / 64)?;
        (name.len() <= LONGEST_OUTPUT).then_some(name)
    }

    fn type_path(&self, ty: Place, described: Described, steps: &mut Steps) -> Option<String> {
        let (mut place, mut described, mut name) = (ty, described, None);
        loop {
            name = name.or(described.name.take());
            let Some(declared) = described.origin else { break };
            place = declared;
            described = self.describe(place, steps)?;
        }
        let name =
            name.map_or_else(|| self.unnamed(place, &described, "unnamed type"), |name| name.to_string());
        let scope = steps.within(|steps| self.scope_of(place, Spelling::Cpp, "", steps))?;
        Some(if scope.is_empty() { name } else { format!("{scope}::{name}") })
    }

    fn describe(&self, entry: Place, steps: &mut Steps) -> Option<Described> {
        let (place, unit, offset) = entry;
        steps.take(1)?;
        let read = self.unit(place, unit).ok()?;
        let dwarf = self.dwarf(place);
        // An offset outside the unit is refused here.
        UnitOffset(offset).is_in_bounds(&read.header).then_some(())?;
        let mut entries = read.entries_raw(Some(UnitOffset(offset))).ok()?;
        let abbreviation = entries.read_abbreviation().ok()??;
        let mut found = Described { tag: Some(abbreviation.tag()), ..Described::default() };
        for spec in abbreviation.attributes() {
            let attribute = entries.read_attribute(*spec).ok()?;
            let value = || attribute.value();
            let flag = || matches!(attribute.value(), AttributeValue::Flag(true));
            match attribute.name() {
                gimli::DW_AT_name => found.name = text(&dwarf.attr_string(&read, value()).ok()?),
                gimli::DW_AT_type => found.ty = self.follow(place, unit, value()),
                gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                    found.origin = self.follow(place, unit, value());
                }
                gimli::DW_AT_external => found.is_external = flag(),
                gimli::DW_AT_artificial => found.is_artificial = flag(),
                gimli::DW_AT_decl_file => {
                    found.file = match value() {
                        AttributeValue::FileIndex(file) => Some(file),
                        _ => attribute.udata_value(),
                    };
                }
                gimli::DW_AT_decl_line => found.line = attribute.udata_value(),
                gimli::DW_AT_decl_column => found.column = attribute.udata_value(),
                _ => {}
            }
        }
        found.children = abbreviation.has_children().then(|| entries.next_offset().0);
        steps.take(found.name.as_ref().map_or(0, |name| name.len() / 64))?;
        Some(found)
    }

    /// What functions of a unit are declared in; read once.
    fn scopes(&self, place: UnitPlace, unit: usize) -> Option<Arc<Scopes>> {
        if let Some(known) = self.reader.kept.borrow().scopes.get(&(place, unit)) {
            return Some(Arc::clone(known));
        }
        let read = self.unit(place, unit).ok()?;
        let scopes = Arc::new(Scopes::read(&read));
        let mut kept = self.reader.kept.borrow_mut();
        kept.count(scopes.held_bytes());
        kept.scopes.insert((place, unit), Arc::clone(&scopes));
        Some(scopes)
    }
}

/// Whether a function's short name has arguments of a template.
fn is_template(plain: &str) -> bool {
    plain.ends_with('>') && plain.contains('<') && !plain.starts_with("operator")
}

/// A base type as demangled names have it; GCC has its own order of words.
fn base_type(name: &str) -> &str {
    match name {
        "long int" => "long",
        "long unsigned int" => "unsigned long",
        "long long int" => "long long",
        "long long unsigned int" => "unsigned long long",
        "short int" => "short",
        "short unsigned int" => "unsigned short",
        "decltype(nullptr)" => "std::nullptr_t",
        _ => name,
    }
}
