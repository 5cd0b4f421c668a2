//! Validation of regular expressions for Envoy: the syntax of RE2, and the size of the compiled
//! program (RE2, `doc/syntax.txt`; Envoy, `re2.max_program_size.error_level`).
//!
//! Envoy rejects the whole route configuration if it cannot compile one expression. This module is
//! therefore stricter than RE2 where RE2 is vague, for example in names of rare scripts.

/// Maximum number of repetitions of one element; nested repetitions are multiplied.
const REPEAT_MAX: u32 = 1000;
/// Maximum size of a program in instructions. The bootstraps of Istio and Strait configure this
/// limit in Envoy.
const PROGRAM_MAX: u64 = 32_768;
/// Maximum length of an expression in bytes. Istio's schema rejects longer ones.
const LENGTH_MAX: usize = 1024;
/// Maximum size of a program in Envoys without a limit in their bootstrap.
pub const PLAIN_PROGRAM_MAX: u64 = 100;
/// Approximate number of RE2 instructions for a negated class or `.` (8 on Envoy 1.36, 2 on 1.40).
const ANY_CHARACTER: u64 = 8;
/// Number of additional instructions of every program.
const FRAME: u64 = 4;

/// Properties of a valid expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Regex {
    /// Number of capture groups.
    pub groups: u32,
    /// Approximate size of the program in instructions, rather too large than too small.
    pub size: u64,
}

/// Parses an expression.
///
/// # Errors
/// A description of the problem.
pub fn parse(text: &str) -> Result<Regex, String> {
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    if text.len() > LENGTH_MAX {
        return Err(format!("is longer than {LENGTH_MAX} bytes"));
    }
    let mut parser = RegexParser { rest: text, groups: 0, names: Vec::new() };
    let size = parser.alternatives(0)?;
    if !parser.rest.is_empty() {
        return Err("has an unmatched )".to_owned());
    }
    let size = size.instructions.saturating_add(FRAME);
    if size > PROGRAM_MAX {
        return Err(format!("compiles to more than {PROGRAM_MAX} instructions"));
    }
    Ok(Regex { groups: parser.groups, size })
}

/// Returns the highest group in a substitution (`\1`).
///
/// # Errors
/// RE2 does not accept the substitution.
pub fn highest_group(substitution: &str) -> Result<u32, String> {
    let mut highest = 0;
    let mut rest = substitution.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            continue;
        }
        match rest.next() {
            Some('\\') => {}
            Some(digit) if digit.is_ascii_digit() => {
                highest = highest.max(digit.to_digit(10).unwrap_or_default());
            }
            _ => return Err("has a \\ without a digit or another \\ after it".to_owned()),
        }
    }
    Ok(highest)
}

/// Returns an expression that matches exactly this text.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() && !c.is_ascii_alphanumeric() && c != '/' {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Properties of a part of an expression.
#[derive(Debug, Clone, Copy, Default)]
struct RegexPart {
    instructions: u64,
    /// Highest repetition count of any element.
    repeated: u32,
}

struct RegexParser<'a> {
    rest: &'a str,
    groups: u32,
    names: Vec<&'a str>,
}

impl<'a> RegexParser<'a> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next();
        self.rest = chars.as_str();
        next
    }

    fn take(&mut self, prefix: &str) -> bool {
        let stripped = self.rest.strip_prefix(prefix);
        self.rest = stripped.unwrap_or(self.rest);
        stripped.is_some()
    }

    /// Parses alternatives up to a closing `)`, which is not consumed, or up to the end. The length
    /// of the expression limits `depth`.
    fn alternatives(&mut self, depth: usize) -> Result<RegexPart, String> {
        let mut all = self.sequence(depth)?;
        while self.take("|") {
            let next = self.sequence(depth)?;
            all.instructions = all.instructions.saturating_add(next.instructions).saturating_add(1);
            all.repeated = all.repeated.max(next.repeated);
        }
        Ok(all)
    }

    fn sequence(&mut self, depth: usize) -> Result<RegexPart, String> {
        let mut all = RegexPart::default();
        // The last element, and whether it is repeated already.
        let mut last: Option<(RegexPart, bool)> = None;
        while let Some(c) = self.peek() {
            if c == '|' || c == ')' {
                break;
            }
            if let Some((least, most)) = self.repetition()? {
                let Some((thing, is_repeated)) = last else {
                    return Err("repeats nothing".to_owned());
                };
                if is_repeated {
                    return Err("repeats a repetition, which RE2 rejects".to_owned());
                }
                all.instructions -= thing.instructions;
                let again = repeat(thing, least, most)?;
                all.instructions = all.instructions.saturating_add(again.instructions);
                all.repeated = all.repeated.max(again.repeated);
                last = Some((again, true));
                continue;
            }
            let thing = self.thing(depth)?;
            if let Some(thing) = thing {
                all.instructions = all.instructions.saturating_add(thing.instructions);
                all.repeated = all.repeated.max(thing.repeated);
            }
            last = thing.map(|thing| (thing, false)).or(last);
        }
        Ok(all)
    }

    /// Parses `*`, `+`, `?` or `{2,3}`: minimum and maximum, `None` without a maximum. Any other
    /// `{` is a literal.
    fn repetition(&mut self) -> Result<Option<(u32, Option<u32>)>, String> {
        let found = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => {
                let Some((counts, rest)) = self.rest[1..].split_once('}') else { return Ok(None) };
                let number = |text: &str| {
                    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                    let has_leading_zero = text.len() > 1 && text.starts_with('0');
                    (digits && !has_leading_zero).then(|| text.parse().unwrap_or(u32::MAX))
                };
                let (least, most) = match counts.split_once(',') {
                    None => (number(counts), number(counts).map(Some)),
                    Some((least, "")) => (number(least), Some(None)),
                    Some((least, most)) => (number(least), number(most).map(Some)),
                };
                let (Some(least), Some(most)) = (least, most) else { return Ok(None) };
                if least > REPEAT_MAX || most.is_some_and(|most| most > REPEAT_MAX || most < least)
                {
                    return Err(format!(
                        "repeats {{{counts}}} times, but the range is 0 to \
                                        {REPEAT_MAX}"
                    ));
                }
                self.rest = rest;
                self.take("?");
                return Ok(Some((least, most)));
            }
            _ => return Ok(None),
        };
        self.next();
        self.take("?");
        Ok(Some(found))
    }

    /// Parses one repeatable element; `None` for flags.
    fn thing(&mut self, depth: usize) -> Result<Option<RegexPart>, String> {
        let part = |instructions| Ok(Some(RegexPart { instructions, repeated: 1 }));
        match self.next().unwrap_or_default() {
            '(' => self.group(depth + 1),
            '[' => self.class().map(Some),
            '.' => part(ANY_CHARACTER),
            '\\' => self.escape(),
            c => part(c.len_utf8() as u64),
        }
    }

    fn group(&mut self, depth: usize) -> Result<Option<RegexPart>, String> {
        let mut captures = true;
        if self.take("?P<") || self.take("?<") {
            let (name, rest) = self.rest.split_once('>').ok_or("has an unterminated group name")?;
            let is_name_byte = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
            if name.is_empty() || !name.bytes().all(is_name_byte) {
                return Err(format!("has a group with the invalid name {name:?}"));
            }
            if self.names.contains(&name) {
                return Err(format!("has two groups named {name:?}"));
            }
            self.names.push(name);
            self.rest = rest;
        } else if self.take("?") {
            captures = false;
            let end = self.rest.find([')', ':']).ok_or("has an unmatched (")?;
            let flags = &self.rest[..end];
            let plain = flags.strip_prefix('-').unwrap_or(flags);
            let mut parts = plain.splitn(2, '-');
            let are_valid = parts.all(|part| part.bytes().all(|b| b"imsU".contains(&b)));
            let is_colon = self.rest[end..].starts_with(':');
            if !are_valid || flags.ends_with('-') || (flags.is_empty() && !is_colon) {
                return Err(format!("has (?{flags}, which RE2 does not support"));
            }
            self.rest = &self.rest[end + 1..];
            if !is_colon {
                return Ok(None);
            }
        }
        let mut inner = self.alternatives(depth)?;
        if !self.take(")") {
            return Err("has an unmatched (".to_owned());
        }
        if captures {
            self.groups += 1;
            inner.instructions = inner.instructions.saturating_add(2);
        }
        Ok(Some(inner))
    }

    /// Parses the rest of an escape sequence outside of a character class.
    fn escape(&mut self) -> Result<Option<RegexPart>, String> {
        let part = |instructions| Ok(Some(RegexPart { instructions, repeated: 1 }));
        match self.peek() {
            Some('A' | 'z' | 'b' | 'B' | 'C') => {
                self.next();
                part(1)
            }
            Some('Q') => {
                self.next();
                let (literal, rest) = self.rest.split_once("\\E").unwrap_or((self.rest, ""));
                self.rest = rest;
                if literal.is_empty() { Ok(None) } else { part(literal.len() as u64) }
            }
            Some('d' | 's' | 'w') => {
                self.next();
                part(4)
            }
            Some('D' | 'S' | 'W') => {
                self.next();
                part(ANY_CHARACTER + 4)
            }
            Some('p' | 'P') => {
                self.property()?;
                part(8 * ANY_CHARACTER)
            }
            _ => {
                let c = self.character()?;
                part(c.len_utf8() as u64)
            }
        }
    }

    /// Parses `\pL` or `\p{Greek}`, beginning at the `p`.
    fn property(&mut self) -> Result<(), String> {
        self.next();
        let name = match self.peek() {
            Some('{') => {
                let (name, rest) =
                    self.rest[1..].split_once('}').ok_or("has an unterminated \\p{")?;
                self.rest = rest;
                name
            }
            Some(c) => {
                let (name, rest) = self.rest.split_at(c.len_utf8());
                self.rest = rest;
                name
            }
            None => return Err("ends in \\p".to_owned()),
        };
        let name = name.strip_prefix('^').unwrap_or(name);
        if is_property(name) {
            Ok(())
        } else {
            Err(format!("uses the unknown property {name:?} with \\p"))
        }
    }

    /// Parses an escaped character, after the `\`.
    fn character(&mut self) -> Result<char, String> {
        let Some(c) = self.next() else { return Err("ends in \\".to_owned()) };
        let named = |c| format!("has \\{c}, which RE2 does not support");
        match c {
            'n' | 'r' | 't' | 'a' | 'f' | 'v' => Ok(' '),
            'x' => {
                let digits = if self.take("{") {
                    let (digits, rest) =
                        self.rest.split_once('}').ok_or("has an unterminated \\x{")?;
                    self.rest = rest;
                    digits
                } else {
                    let digits = self.rest.get(..2).ok_or("has \\x without two digits")?;
                    self.rest = &self.rest[2..];
                    digits
                };
                let hexadecimal =
                    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
                let code = u32::from_str_radix(digits, 16).ok().filter(|_| hexadecimal);
                code.and_then(char::from_u32)
                    .ok_or_else(|| format!("has \\x{digits}, which is not a character"))
            }
            '0'..='7' => {
                let more =
                    self.rest.bytes().take(2).take_while(|b| (b'0'..=b'7').contains(b)).count();
                if c != '0' && more == 0 {
                    return Err(format!(
                        "has the back-reference \\{c}, which RE2 does not support"
                    ));
                }
                self.rest = &self.rest[more..];
                Ok(' ')
            }
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => Ok(c),
            c => Err(named(c)),
        }
    }

    /// Parses a character class, after the `[`.
    fn class(&mut self) -> Result<RegexPart, String> {
        let open = "has an unmatched [";
        let negated = self.take("^");
        let (mut ranges, mut is_wide, mut is_first) = (0, negated, true);
        loop {
            match self.peek().ok_or(open)? {
                ']' if !is_first => {
                    self.next();
                    break;
                }
                '[' if self.rest.starts_with("[:") && self.rest.contains(":]") => {
                    let (name, rest) = self.rest[2..].split_once(":]").ok_or(open)?;
                    if !CLASSES.contains(&name.strip_prefix('^').unwrap_or(name)) {
                        return Err(format!("has the unknown class [:{name}:]"));
                    }
                    is_wide |= name.starts_with('^');
                    self.rest = rest;
                    ranges += 3;
                }
                '\\' if self.rest[1..].starts_with(['d', 's', 'w']) => {
                    self.rest = &self.rest[2..];
                    ranges += 3;
                }
                '\\' if self.rest[1..].starts_with(['D', 'S', 'W', 'p', 'P']) => {
                    self.next();
                    is_wide = true;
                    if self.rest.starts_with(['p', 'P']) {
                        self.property()?;
                        ranges += 8 * ANY_CHARACTER;
                    } else {
                        self.next();
                    }
                }
                _ => {
                    let low = self.in_class(open)?;
                    ranges += low.len_utf8() as u64;
                    if self.rest.starts_with('-')
                        && !self.rest.starts_with("-]")
                        && self.rest.len() > 1
                    {
                        self.next();
                        let is_escaped = self.rest.starts_with('\\');
                        let high = self.in_class(open)?;
                        if high < low && !is_escaped {
                            return Err(format!("has the empty range {low}-{high}"));
                        }
                        is_wide |= !high.is_ascii();
                    }
                }
            }
            is_first = false;
        }
        let wide = if is_wide { ANY_CHARACTER } else { 0 };
        Ok(RegexPart { instructions: ranges + wide, repeated: 1 })
    }

    fn in_class(&mut self, open: &str) -> Result<char, String> {
        match self.next().ok_or(open)? {
            '\\' => self.character(),
            c => Ok(c),
        }
    }
}

fn repeat(thing: RegexPart, least: u32, most: Option<u32>) -> Result<RegexPart, String> {
    let times = most.unwrap_or(least).max(1);
    let repeated = if times > 1 { thing.repeated.saturating_mul(times) } else { thing.repeated };
    if repeated > REPEAT_MAX {
        return Err(format!("repeats an element more than {REPEAT_MAX} times in total"));
    }
    let optional = match most {
        None => 1,
        Some(most) => most - least,
    };
    let copies = u64::from(times);
    let instructions =
        thing.instructions.saturating_mul(copies).saturating_add(u64::from(optional));
    Ok(RegexPart { instructions, repeated })
}

/// Names of POSIX classes in brackets.
const CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct",
    "space", "upper", "word", "xdigit",
];

/// Returns whether a name is a general category or a common script.
fn is_property(name: &str) -> bool {
    const CATEGORIES: [&str; 37] = [
        "Any", "C", "Cc", "Cf", "Co", "Cs", "L", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me",
        "Mn", "N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc",
        "Sk", "Sm", "So", "Z", "Zl", "Zp", "Zs",
    ];
    const SCRIPTS: [&str; 14] = [
        "Arabic",
        "Armenian",
        "Bengali",
        "Common",
        "Cyrillic",
        "Devanagari",
        "Georgian",
        "Greek",
        "Han",
        "Hangul",
        "Hebrew",
        "Hiragana",
        "Katakana",
        "Latin",
    ];
    CATEGORIES.contains(&name) || SCRIPTS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_expressions_are_accepted() {
        let cases = [
            ("/api/v[0-9]+/users/.*", 0),
            (".*", 0),
            ("^(.*?;)?(user=jason)(;.*)?$", 3),
            (r"/a\.b\/c\-d\_e", 0),
            (r"(?i)curl.*", 0),
            (r"(?P<ver>v\d{1,3})/(?<id>[[:alpha:]_]+)", 2),
            (r"[^/]+(/|$)", 1),
            (r"[]a-]", 0),
            (r"a{,3}b{x}", 0),
            (r"(?:a|b)*?", 0),
            (r"\Qa.b*c\E+", 0),
            (r"\x41\x{1F600}\012", 0),
            (r"\p{Greek}\PL", 0),
            ("(?i-s:a)|", 0),
            ("^*", 0),
        ];
        for (text, groups) in cases {
            assert_eq!(parse(text).map(|regex| regex.groups), Ok(groups), "{text}");
        }
    }

    #[test]
    fn invalid_expressions_are_rejected() {
        let long = "a".repeat(1025);
        let cases = [
            "",
            "*a",
            "a**",
            "a+?+",
            "(a",
            "a)",
            "[a",
            "[z-a]",
            r"\1",
            r"(?=a)",
            r"(?!a)",
            r"(?<=a)",
            r"\q",
            r"a\",
            "a{1001}",
            "a{3,2}",
            "(a{100}){100}",
            "[[:nope:]]",
            r"\p{Klingon}",
            "(?P<a>x)(?P<a>y)",
            "(?P<>x)",
            "(?x)a",
            "(?",
            "[a-\\",
            r"\x{110000}",
            r"\xg1",
            &long,
            r"[\w-\q]",
            "(?)a",
            ".{999}.{999}.{999}.{999}.{999}",
        ];
        for text in cases {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn estimated_program_size_is_not_below_the_size_in_envoy() {
        // Sizes that Envoy 1.36 reports.
        let cases = [
            (".*", 12),
            ("/api/v[0-9]+/users/.*", 27),
            ("^(.*?;)?(user=jason)(;.*)?$", 38),
            (".{50}", 404),
            ("a{500}", 504),
            ("[^/]{30}", 244),
            (r"\w+@\w+\.com", 17),
            (r"\p{Greek}", 66),
            (r"\S+", 15),
        ];
        for (text, size) in cases {
            let found = parse(text).map(|regex| regex.size);
            assert!(
                found.as_ref().is_ok_and(|found| (size..3 * size).contains(found)),
                "{text}: {found:?}"
            );
        }
    }

    #[test]
    fn substitution_refers_to_groups_by_digits() {
        assert_eq!(highest_group(r"/new/\1/\2"), Ok(2));
        assert_eq!(highest_group(r"a\\1"), Ok(0));
        assert!(highest_group(r"a\x").is_err() && highest_group("a\\").is_err());
    }
}
