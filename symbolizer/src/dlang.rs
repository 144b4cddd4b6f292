//! Names of D functions, as <https://dlang.org/spec/abi.html#name_mangling> has them.

/// Types within types.
const MOST_NESTED: u32 = 32;
/// Types and names that one name may have: references to earlier parts can repeat them without end.
const MOST_PARTS: u32 = 500;
/// As of other names.
const LONGEST_OUTPUT: usize = 16 << 10;

/// A function of D: `_D3one5solveFKdlZv` is `one.solve(ref double, long)`. Its path in front of it must lead to the short name, else
/// it is that of a function around it, and stays as it is.
pub(crate) fn function(linkage: &str, plain: &str) -> Option<String> {
    let rest = linkage.strip_prefix("_D")?;
    let stem = plain.split(['!', '(']).next().filter(|stem| !stem.is_empty())?;
    let mut path: Vec<&str> = Vec::new();
    let mut at = linkage.len() - rest.len();
    let mut of_template = None;
    loop {
        let rest = &linkage[at..];
        let template = rest.strip_prefix("__T").or(rest.strip_prefix("__U"));
        let Some((name, after)) = length_prefixed(template.unwrap_or(rest)) else { break };
        if let Some((inner, _)) = name.strip_prefix("__T").and_then(length_prefixed) {
            // As earlier compilers have it.
            path.push(inner);
            of_template =
                Some((linkage.len() - after.len() - name.len() + 3 + digits(&name[3..]) + inner.len(), true));
            at = linkage.len() - after.len();
            break;
        }
        path.push(name);
        at = linkage.len() - after.len();
        if template.is_some() {
            of_template = Some((at, false));
        }
    }
    let last = path.pop()?;
    if last != stem || path.is_empty() {
        // A function within another one, a constructor or the like.
        return (!plain.starts_with("D ")).then(|| linkage.to_owned());
    }
    let path = path.join(".");
    let signature = Signature { text: linkage, at, left: MOST_PARTS, nested: 0 }.read(of_template);
    Some(match signature {
        Some((generics, parameters)) if path.len() + generics.len() + parameters.len() <= LONGEST_OUTPUT => {
            let generics = if plain.contains('!') { "" } else { &generics };
            format!("{path}.{plain}{generics}{parameters}")
        }
        // The types as they are mangled: they tell functions apart all the same.
        _ => format!("{path}.{plain} [{}]", &linkage[at..]),
    })
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// A name behind its length, and what follows.
fn length_prefixed(text: &str) -> Option<(&str, &str)> {
    let digits = digits(text);
    let length: usize = text[..digits].parse().ok()?;
    text[digits..].split_at_checked(length).filter(|(name, _)| !name.is_empty())
}

/// What is read of a mangled name.
struct Signature<'a> {
    text: &'a str,
    at: usize,
    left: u32,
    nested: u32,
}

impl<'a> Signature<'a> {
    /// The arguments of the template that the function is of, whose place is known and whether the function's name follows its end, and
    /// the types of parameters.
    fn read(&mut self, of_template: Option<(usize, bool)>) -> Option<(String, String)> {
        let mut generics = String::new();
        if let Some((at, is_counted)) = of_template {
            let after = std::mem::replace(&mut self.at, at);
            generics = self.template_arguments()?;
            if is_counted {
                self.at = after;
            }
            // The function that the template is named after.
            if matches!(self.peek()?, b'Q' | b'0'..=b'9') {
                self.name()?;
            }
        }
        let mut of_this = "";
        if self.eat("M") {
            for (mark, word) in [("Nx", " inout"), ("x", " const"), ("y", " immutable"), ("O", " shared")] {
                if self.eat(mark) {
                    of_this = word;
                }
            }
        }
        Some((generics, self.parameters()? + of_this))
    }

    /// From the calling convention to the end of the parameters.
    fn parameters(&mut self) -> Option<String> {
        matches!(self.next()?, b'F' | b'U' | b'W' | b'R' | b'Y').then_some(())?;
        // Attributes such as `pure`; `Ng`, `Nh`, `Nk` and `Nn` belong to parameters.
        while self.rest().starts_with('N')
            && !matches!(self.text.as_bytes().get(self.at + 1)?, b'g' | b'h' | b'k' | b'n')
        {
            self.at += 2;
        }
        let mut types = Vec::new();
        loop {
            match self.peek()? {
                b'Z' => break,
                b'X' => {
                    types.push("...".to_owned());
                    break;
                }
                b'Y' => {
                    types.push("...".to_owned());
                    break;
                }
                _ => types.push(self.parameter()?),
            }
        }
        self.at += 1;
        Some(format!("({})", types.join(", ")))
    }

    fn parameter(&mut self) -> Option<String> {
        let mut words = String::new();
        let marks =
            [("M", "scope "), ("Nk", "return "), ("K", "ref "), ("J", "out "), ("I", "in "), ("L", "lazy ")];
        while let Some((_, word)) = marks.iter().find(|(mark, _)| self.eat(mark)) {
            words += word;
            self.part()?;
        }
        Some(words + &self.ty()?)
    }

    fn ty(&mut self) -> Option<String> {
        self.part()?;
        (self.nested < MOST_NESTED).then_some(())?;
        self.nested += 1;
        let ty = self.read_type();
        self.nested -= 1;
        ty.filter(|ty| ty.len() <= LONGEST_OUTPUT)
    }

    fn read_type(&mut self) -> Option<String> {
        if self.peek()? == b'Q' {
            return self.referred(Self::ty);
        }
        Some(match self.next()? {
            b'A' => self.ty()? + "[]",
            b'P' => self.ty()? + "*",
            b'G' => {
                let len = digits(self.rest());
                let count = &self.rest()[..len];
                self.at += len;
                format!("{}[{count}]", self.ty()?)
            }
            b'H' => {
                let key = self.ty()?;
                format!("{}[{key}]", self.ty()?)
            }
            b'x' => format!("const({})", self.ty()?),
            b'y' => format!("immutable({})", self.ty()?),
            b'O' => format!("shared({})", self.ty()?),
            b'N' if self.eat("g") => format!("inout({})", self.ty()?),
            b'S' | b'C' | b'E' | b'I' => self.path()?,
            b'z' if self.eat("i") => "cent".to_owned(),
            b'z' if self.eat("k") => "ucent".to_owned(),
            letter => basic_type(letter)?.to_owned(),
        })
    }

    fn path(&mut self) -> Option<String> {
        let mut path = self.name()?;
        while matches!(self.peek(), Some(b'0'..=b'9'))
            || self.is_name_reference()
            || self.rest().starts_with("__T")
        {
            path = format!("{path}.{}", self.name()?);
            (path.len() <= LONGEST_OUTPUT).then_some(())?;
        }
        Some(path)
    }

    fn name(&mut self) -> Option<String> {
        self.part()?;
        if self.peek()? == b'Q' {
            return self.referred(Self::name);
        }
        let is_template = self.eat("__T") || self.eat("__U");
        let (name, rest) = length_prefixed(self.rest())?;
        self.at = self.text.len() - rest.len();
        let generics = if is_template { self.template_arguments()? } else { String::new() };
        Some(name.to_owned() + &generics)
    }

    /// From the first argument to the end.
    fn template_arguments(&mut self) -> Option<String> {
        (self.nested < MOST_NESTED).then_some(())?;
        self.nested += 1;
        let mut arguments = Vec::new();
        while !self.eat("Z") {
            self.eat("H"); // a specialised one
            arguments.push(match self.next()? {
                b'T' => self.ty()?,
                b'S' => self.path()?,
                b'V' => {
                    self.ty()?;
                    let sign = if self.eat("N") { "-" } else { "" };
                    self.eat("i");
                    let len = digits(self.rest());
                    let value = (len > 0).then(|| &self.rest()[..len])?;
                    self.at += len;
                    format!("{sign}{value}")
                }
                _ => return None,
            });
        }
        self.nested -= 1;
        Some(match arguments.as_slice() {
            [one] if one.bytes().all(|byte| byte.is_ascii_alphanumeric()) => format!("!{one}"),
            all => format!("!({})", all.join(", ")),
        })
    }

    /// What stands so far before this place.
    fn referred(&mut self, read: impl FnOnce(&mut Self) -> Option<String>) -> Option<String> {
        let (from, after) = self.reference()?;
        self.at = from;
        let found = read(self);
        self.at = after;
        found
    }

    /// Where a reference leads, and where it ends: a number in base 26 whose last digit is in lower case.
    fn reference(&self) -> Option<(usize, usize)> {
        let mut distance = 0usize;
        for (index, &digit) in self.text.as_bytes().iter().enumerate().skip(self.at + 1) {
            distance = distance.checked_mul(26)?;
            match digit {
                b'A'..=b'Z' => distance += usize::from(digit - b'A'),
                b'a'..=b'z' => {
                    let from = self.at.checked_sub(distance + usize::from(digit - b'a'))?;
                    return (from < self.at).then_some((from, index + 1));
                }
                _ => return None,
            }
        }
        None
    }

    fn is_name_reference(&self) -> bool {
        let to = || self.text.as_bytes().get(self.reference()?.0);
        self.peek() == Some(b'Q') && to().is_some_and(u8::is_ascii_digit)
    }

    fn part(&mut self) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        Some(())
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let next = self.peek()?;
        self.at += 1;
        Some(next)
    }

    fn eat(&mut self, mark: &str) -> bool {
        let is_there = self.rest().starts_with(mark);
        self.at += if is_there { mark.len() } else { 0 };
        is_there
    }
}

fn basic_type(letter: u8) -> Option<&'static str> {
    Some(match letter {
        b'v' => "void",
        b'g' => "byte",
        b'h' => "ubyte",
        b's' => "short",
        b't' => "ushort",
        b'i' => "int",
        b'k' => "uint",
        b'l' => "long",
        b'm' => "ulong",
        b'f' => "float",
        b'd' => "double",
        b'e' => "real",
        b'b' => "bool",
        b'a' => "char",
        b'u' => "wchar",
        b'w' => "dchar",
        b'n' => "typeof(null)",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn overloads_and_instances_are_told_apart() {
        for (linkage, plain, expected) in [
            ("_D1m5solveFiZv", "solve", "m.solve(int)"),
            ("_D1m5solveFdZv", "solve", "m.solve(double)"),
            ("_D3one5solveFKdlZv", "solve", "one.solve(ref double, long)"),
            ("_D3one1S4stepMFKdlZv", "step", "one.S.step(ref double, long)"),
            ("_D3one1S4stepMxFNaNbZv", "step", "one.S.step() const"),
            ("_D1m__T2twTdZQgFNbNidZd", "tw", "m.tw!double(double)"),
            ("_D1m__T2twTiZQgFNbNiiZi", "tw!int", "m.tw!int(int)"),
            ("_D3one12__T5twiceTdZ5twiceFdlZd", "twice", "one.twice!double(double, long)"),
            (
                "_D1m3putFAyaPxvHiAaG4fZv",
                "put",
                "m.put(immutable(char)[], const(void)*, char[][int], float[4])",
            ),
            ("_D1m3putFS1m4GridC1m1QZv", "put", "m.put(m.Grid, m.Q)"),
            ("_D1m3putFS1m4GridQiZv", "put", "m.put(m.Grid, m.Grid)"),
            // A delegate is not spelled out.
            ("_D1m3putFDFiZvZv", "put", "m.put [FDFiZvZv]"),
        ] {
            assert_eq!(function(linkage, plain).as_deref(), Some(expected), "{linkage}");
        }
    }

    #[test]
    fn references_do_not_repeat_without_end() {
        // Each type has the one before it twice.
        let pairs = (0..60).map(|_| "HQbQc").collect::<String>();
        let name = format!("_D1m3putFAi{pairs}Zv");
        assert!(function(&name, "put").is_some_and(|name| name.len() <= LONGEST_OUTPUT));
    }

    proptest! {
        #[test]
        fn no_name_panics(linkage in "_D(1m)?(3put|__T3put[TVSZ]?|9__T3putTiZ3put)[FMNQZAHGPSCTVabikxé0-9_]{0,24}") {
            let _ = function(&linkage, "put");
        }
    }
}
