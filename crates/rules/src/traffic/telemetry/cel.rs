//! Checks whether Envoy can parse a CEL expression (Common Expression Language, "Language
//! Definition"; Envoy, access log filter `envoy.access_loggers.extension_filters.cel`; tested with
//! Envoy 1.36 and 1.40).
//!
//! Envoy rejects the whole listener if it cannot parse an expression. Unknown attributes are no
//! problem: they are an error for a single request, which is then not logged. This check is
//! stricter than Envoy for rarely used syntax: comments, names in backticks and messages are
//! rejected.

mod attributes;
mod tokens;

use self::tokens::{CelToken, tokens};
use crate::traffic::re2;

/// Form of a function call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CelForm {
    /// `name(a)`, with this number of arguments.
    Global(usize),
    /// `name(a, b)`, with this number of arguments, or `a.name(b)`.
    Either(usize),
}

/// Functions that Envoy supports. It disables functions over lists and `string`. `has` is a macro,
/// not a function.
const FUNCTIONS: [(&str, CelForm); 13] = [
    ("bytes", CelForm::Global(1)),
    ("contains", CelForm::Either(2)),
    ("double", CelForm::Global(1)),
    ("duration", CelForm::Global(1)),
    ("dyn", CelForm::Global(1)),
    ("endsWith", CelForm::Either(2)),
    ("int", CelForm::Global(1)),
    ("matches", CelForm::Either(2)),
    ("size", CelForm::Either(1)),
    ("startsWith", CelForm::Either(2)),
    ("timestamp", CelForm::Global(1)),
    ("type", CelForm::Global(1)),
    ("uint", CelForm::Global(1)),
];

/// Reserved words, which are not valid names.
const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "namespace",
    "package",
    "return",
    "var",
    "void",
    "while",
];

/// Words that are literals.
const VALUES: [&str; 3] = ["false", "null", "true"];

/// Maximum depth of an expression. Each operator, selection, index and call adds one level to its
/// operand, so that `1 + 1 + 1` has depth 3. A whole chain of `||` or `&&` adds one level (cel-cpp,
/// `max_recursion_depth`, as set by Envoy).
const DEPTH_MAX: usize = 32;
/// Maximum length of an expression in bytes.
const BYTES_MAX: usize = 4096;

/// Checks an expression.
///
/// # Errors
/// A description of the problem.
pub(super) fn check(text: &str) -> Result<(), String> {
    if text.len() > BYTES_MAX {
        return Err(format!("is longer than {BYTES_MAX} bytes"));
    }
    let tokens = tokens(text)?;
    let mut parser = Parser { rest: &tokens, nested: 0 };
    let depth = parser.expression()?;
    match parser.rest.first() {
        None if depth > DEPTH_MAX => Err(too_deep()),
        None => Ok(()),
        Some(token) => Err(format!("has an unexpected {token} after a complete expression")),
    }
}

/// Returns the names in a valid expression that are not attributes of Envoy, for example misspelled
/// ones.
pub(super) fn unknown_attributes(text: &str) -> Vec<String> {
    tokens(text).map(|tokens| attributes::unknown(&tokens)).unwrap_or_default()
}

fn too_deep() -> String {
    format!("is more than {DEPTH_MAX} operators, selections or calls deep")
}

/// Recursive-descent parser. Each function returns the depth of the part that it parsed. The
/// precedence of operators other than `||` and `&&` does not matter: the maximum possible depth of
/// a chain is assumed.
struct Parser<'t, 'a> {
    rest: &'t [CelToken<'a>],
    /// Number of nested expressions that are being parsed.
    nested: usize,
}

impl<'t, 'a> Parser<'t, 'a> {
    fn takes(&mut self, sign: &str) -> bool {
        let found = self.rest.first() == Some(&CelToken::Sign(sign));
        if found {
            self.rest = &self.rest[1..];
        }
        found
    }

    fn needs(&mut self, sign: &str) -> Result<(), String> {
        if self.takes(sign) {
            return Ok(());
        }
        let found = self.rest.first().map_or("its end".to_owned(), ToString::to_string);
        Err(format!("has {found} where {sign:?} is expected"))
    }

    fn expression(&mut self) -> Result<usize, String> {
        self.nested += 1;
        if self.nested > DEPTH_MAX {
            return Err(too_deep());
        }
        let mut depth = self.disjunction()?;
        if self.takes("?") {
            let then = self.disjunction()?;
            self.needs(":")?;
            depth = 1 + depth.max(then).max(self.expression()?);
        }
        self.nested -= 1;
        Ok(depth)
    }

    fn disjunction(&mut self) -> Result<usize, String> {
        self.joined("||", Self::conjunction)
    }

    fn conjunction(&mut self) -> Result<usize, String> {
        self.joined("&&", Self::operands)
    }

    /// Parses operands that one operator separates.
    fn joined(
        &mut self,
        sign: &str,
        part: impl Fn(&mut Self) -> Result<usize, String>,
    ) -> Result<usize, String> {
        let mut depth = part(self)?;
        let is_alone = self.rest.first() != Some(&CelToken::Sign(sign));
        while self.takes(sign) {
            depth = depth.max(part(self)?);
        }
        Ok(depth + usize::from(!is_alone))
    }

    /// Parses members that operators separate.
    fn operands(&mut self) -> Result<usize, String> {
        const BETWEEN: [&str; 11] = ["<=", ">=", "<", ">", "==", "!=", "+", "-", "*", "/", "%"];
        let mut deepest = self.member()?;
        let mut operators = 0;
        loop {
            let has_operator = match self.rest.first() {
                Some(CelToken::Sign(sign)) => BETWEEN.contains(sign),
                Some(CelToken::Name(name)) => *name == "in",
                _ => false,
            };
            if !has_operator {
                return Ok(operators + deepest);
            }
            self.rest = &self.rest[1..];
            operators += 1;
            deepest = deepest.max(self.member()?);
        }
    }

    fn member(&mut self) -> Result<usize, String> {
        let before = self.rest.len();
        if self.takes("!") {
            while self.takes("!") {}
        } else {
            while self.takes("-") {}
        }
        let is_turned = self.rest.len() < before;
        Ok(self.selected()?.depth + usize::from(is_turned))
    }

    /// Parses a value with its selections.
    fn selected(&mut self) -> Result<CelSelection, String> {
        let mut found = CelSelection { depth: self.primary()?, is_field: false };
        loop {
            if self.takes(".") {
                let name = self.field()?;
                let is_field = !self.takes("(");
                let depth =
                    if is_field { found.depth } else { self.call(name, Some(found.depth))? };
                found = CelSelection { depth: 1 + depth, is_field };
            } else if self.takes("[") {
                let depth = 1 + found.depth.max(self.expression()?);
                self.needs("]")?;
                found = CelSelection { depth, is_field: false };
            } else {
                return Ok(found);
            }
        }
    }

    fn primary(&mut self) -> Result<usize, String> {
        if self.takes("(") {
            let depth = self.expression()?;
            self.needs(")")?;
            return Ok(depth);
        }
        if self.takes("[") {
            return Ok(1 + self.list("]", Self::expression)?);
        }
        if self.takes("{") {
            let entries = self.list("}", |parser| {
                let key = parser.expression()?;
                parser.needs(":")?;
                Ok(key.max(parser.expression()?))
            })?;
            return Ok(1 + entries);
        }
        if let Some(CelToken::Literal(_) | CelToken::Text { .. }) = self.rest.first() {
            self.rest = &self.rest[1..];
            return Ok(1);
        }
        if self.takes(".") {
            self.field()?;
            return Ok(1);
        }
        let name = self.name()?;
        if !self.takes("(") {
            return Ok(1);
        }
        let depth = if name == "has" { self.has_argument()? } else { self.call(name, None)? };
        Ok(1 + depth)
    }

    fn name(&mut self) -> Result<&'a str, String> {
        let Some((CelToken::Name(name), behind)) = self.rest.split_first() else {
            let found = self.rest.first().map_or("ends".to_owned(), |token| format!("has {token}"));
            return Err(format!("{found} where a value is expected"));
        };
        if *name == "in" || RESERVED.contains(name) {
            return Err(format!("has {name:?}, which is not a valid name"));
        }
        self.rest = behind;
        Ok(*name)
    }

    /// Parses the name after a dot.
    fn field(&mut self) -> Result<&'a str, String> {
        let name = self.name()?;
        if VALUES.contains(&name) {
            return Err(format!("has {name:?} after a dot, where it is not a valid name"));
        }
        Ok(name)
    }

    /// Parses the argument of `has`: a field selection.
    fn has_argument(&mut self) -> Result<usize, String> {
        let found = self.selected()?;
        if !found.is_field {
            return Err("calls has() without a field, such as has(a.b)".to_owned());
        }
        self.needs(")")?;
        Ok(found.depth)
    }

    /// Parses the arguments of a call. `receiver_depth` is the depth of the receiver, if any. Returns the
    /// maximum depth.
    fn call(&mut self, name: &str, receiver_depth: Option<usize>) -> Result<usize, String> {
        let Some((_, form)) = FUNCTIONS.iter().find(|(function, _)| *function == name) else {
            return Err(format!("calls {name}, which not every Envoy supports"));
        };
        let values = self.values()?;
        let given = values.len();
        let is_valid_count = match (form, receiver_depth) {
            (CelForm::Global(count) | CelForm::Either(count), None) => given == *count,
            (CelForm::Either(count), Some(_)) => given + 1 == *count,
            (CelForm::Global(_), Some(_)) => return Err(format!("calls {name} after a dot")),
        };
        if !is_valid_count {
            let place = if receiver_depth.is_some() { " after a dot" } else { "" };
            return Err(format!(
                "calls {name}{place} with {given} arguments, which it does not \
                                accept"
            ));
        }
        if name == "matches"
            && let Some(pattern) = values.last().and_then(|value| text_alone(value.tokens))
        {
            check_pattern(pattern)?;
        }
        let depths = values.iter().map(|value| value.depth).chain(receiver_depth);
        Ok(depths.max().unwrap_or_default())
    }

    /// Parses the arguments of a call up to its end. Unlike in lists, a trailing comma is invalid.
    fn values(&mut self) -> Result<Vec<CelValue<'t, 'a>>, String> {
        let mut values = Vec::new();
        if self.takes(")") {
            return Ok(values);
        }
        loop {
            let from = self.rest;
            let depth = self.expression()?;
            let tokens = &from[..from.len() - self.rest.len()];
            values.push(CelValue { depth, tokens });
            if !self.takes(",") {
                self.needs(")")?;
                return Ok(values);
            }
        }
    }

    fn list(
        &mut self,
        end: &str,
        mut parse_item: impl FnMut(&mut Self) -> Result<usize, String>,
    ) -> Result<usize, String> {
        let mut deepest = 0;
        while !self.takes(end) {
            deepest = deepest.max(parse_item(self)?);
            if !self.takes(",") {
                self.needs(end)?;
                break;
            }
        }
        Ok(deepest)
    }
}

/// A value with its selections.
struct CelSelection {
    depth: usize,
    /// Whether the last selection is a field.
    is_field: bool,
}

/// An argument of a call.
struct CelValue<'t, 'a> {
    depth: usize,
    tokens: &'t [CelToken<'a>],
}

/// Returns the string if the expression is a string literal, possibly in parentheses. Envoy
/// compiles a literal pattern when it parses the expression, and any other pattern for each
/// request.
fn text_alone<'t>(mut tokens: &'t [CelToken<'_>]) -> Option<&'t str> {
    while let [CelToken::Sign("("), within @ .., CelToken::Sign(")")] = tokens {
        tokens = within;
    }
    match tokens {
        [CelToken::Text { value, .. }] => Some(value),
        _ => None,
    }
}

/// Checks that the program of a pattern is within Envoy's default limit.
fn check_pattern(pattern: &str) -> Result<(), String> {
    if pattern.is_empty() {
        return Ok(());
    }
    let within = |fact: String| format!("has a pattern {pattern:?} that {fact}");
    let regex = re2::parse(pattern).map_err(within)?;
    if regex.size > re2::PLAIN_PROGRAM_MAX {
        let most = re2::PLAIN_PROGRAM_MAX;
        return Err(within(format!("compiles to more than {most} instructions")));
    }
    Ok(())
}

/// Expressions that Envoy can parse. They use every supported function.
pub const READABLE: [&str; 15] = [
    "response.code >= 400",
    "(connection.mtls && request.headers['x-log-mtls'] == 'true') || request.url_path.contains('v1beta3')",
    "!has(request.headers.a) ? true : request.size > 10u",
    "request.method in ['GET', \"POST\"] && !(response.code == 200)",
    "xds.cluster_name.startsWith('outbound|') || request.path.endsWith('''it's''')",
    "request.path.matches(r'^/a\\d+$')",
    "size(request.headers) > 3 && int('3') - -2 == 5",
    "[1, 2].size() == 2 && has(request.headers['a'].b)",
    "double(1) < 1.5e3 && uint(2) == 2u && bytes('a') == b'a'",
    "request.duration > duration('1s') && request.time > timestamp('2020-01-01T00:00:00Z')",
    "type(1) == int && dyn(1) == 1",
    "{'a': 1}['a'] == 1 && \"\\u00e9\\x41\\101\\n\" != null",
    "0x1F > 3 % 2",
    "response.flags != 0 && response.code_details.contains('upstream')",
    "true",
];

/// Expressions for which Envoy rejects a whole listener, each with a part of the error message.
pub const UNREADABLE: [(&str, &str); 69] = [
    ("", "ends where a value"),
    ("response.code >=", "ends where a value"),
    ("response.code => 400", "'='"),
    ("(a", "\")\" is expected"),
    ("a b", "has an unexpected \"b\""),
    ("a ? b", "\":\" is expected"),
    ("a.b(", "calls b"),
    ("nothing(1)", "calls nothing"),
    ("[1].all(x, x == 1)", "calls all"),
    ("string(1) == '1'", "calls string"),
    ("has(request.headers['a'])", "has()"),
    ("has(a)", "has()"),
    ("has(a.size())", "has()"),
    ("has(a.b + 1)", "\")\" is expected"),
    ("has(a.b, c.d)", "\")\" is expected"),
    ("a.has(b.c)", "calls has"),
    (".has(b.c)", "has an unexpected \"(\""),
    ("'a", "isn't closed"),
    ("'a\rb' == a", "isn't closed on its line"),
    ("'\\q'", "backslash"),
    ("'\\x+1' == a", "backslash"),
    ("'\\400' == a", "backslash"),
    ("r'a\\' == a", "ends with a backslash"),
    ("'\\ud800' == 'a'", "no Unicode character"),
    ("'\\U99999999' == 'a'", "no Unicode character"),
    ("b'\\u00e9' == b'a'", "within bytes"),
    ("rb'a' == b'a'", "\"rb\" before a quote"),
    ("rr'a' == 'a'", "\"rr\" before a quote"),
    ("a && in", "\"in\""),
    ("a.in", "\"in\""),
    ("request.true", "\"true\" after a dot"),
    ("null() == 1", "calls null"),
    ("99999999999999999999 > 1", "too large"),
    ("1e > 1", "exponent"),
    ("a # b", "not a valid symbol"),
    ("a\u{a0}== b", "not a valid symbol"),
    ("a \u{b}== b", "not a valid symbol"),
    ("\u{feff}a", "not a valid symbol"),
    ("[1, 2", "\"]\" is expected"),
    ("{1}", "\":\" is expected"),
    ("size() > 1", "size with 0 arguments"),
    ("size('a', 'b') == 1", "size with 2 arguments"),
    ("'a'.size('b') == 1", "size after a dot with 1 arguments"),
    ("size('a',) == 1", "\")\" where a value"),
    ("contains('a')", "contains with 1 arguments"),
    ("'a'.contains()", "contains after a dot with 0"),
    ("'a'.startsWith('b', 'c')", "startsWith after a dot with 2"),
    ("endsWith('a')", "endsWith with 1"),
    ("matches('a')", "matches with 1"),
    ("type() == int", "type with 0 arguments"),
    ("(1).type() == int", "calls type after a dot"),
    ("int('1', '2') == 1", "int with 2 arguments"),
    ("'1'.int() == 1", "calls int after a dot"),
    ("a.uint(1) == 1u", "calls uint after a dot"),
    ("a.double(1) == 1.0", "calls double after a dot"),
    ("a.bytes(1) == b''", "calls bytes after a dot"),
    ("a.dyn(1) == 1", "calls dyn after a dot"),
    ("'1s'.duration() == a", "calls duration after a dot"),
    ("'a'.timestamp() == a", "calls timestamp after a dot"),
    ("int(1)(2)", "has an unexpected \"(\""),
    ("request.path.matches('*.js')", "repeats nothing"),
    ("request.path.matches('(?!/healthz)')", "pattern \"(?!/healthz)\""),
    ("matches(request.path, '(')", "pattern \"(\""),
    ("request.path.matches((('(')))", "pattern \"(\""),
    ("request.path.matches('''(''')", "pattern \"(\""),
    ("request.path.matches('\\x28')", "pattern \"(\""),
    ("request.path.matches(r'(?=a)')", "pattern"),
    ("request.path.matches('[a-z]{1000}')", "more than 100 instructions"),
    ("request.path.matches('(x{50}){20}')", "more than 100 instructions"),
];

/// Returns expressions that are one level deeper than Envoy accepts.
pub fn too_deep_for_envoys() -> Vec<String> {
    deep(1)
}

/// Returns expressions with the maximum depth that Envoy accepts.
pub fn as_deep_as_envoys_take() -> Vec<String> {
    deep(0)
}

/// Returns chains and nested expressions with the maximum depth plus `more`.
fn deep(more: usize) -> Vec<String> {
    let nested = |count: usize, before: &str, within: &str, after: &str| {
        let count = count + more;
        format!("{}{within}{}", before.repeat(count), after.repeat(count))
    };
    vec![
        nested(31, "", "1", "+1"),
        nested(31, "", "a", " == a"),
        nested(31, "", "a", ".a"),
        nested(30, "", "has(a", ".a") + ")",
        nested(31, "", "a", "[1]"),
        nested(31, "", "'a'", ".size()"),
        nested(31, "size(", "'a'", ")"),
        nested(31, "a[", "1", "]"),
        nested(31, "[", "1", "]"),
        nested(31, "{1:", "1", "}"),
        nested(31, "!(", "true", ")"),
        nested(31, "a ? b : ", "true", ""),
        nested(31, "(a && ", "true", ")"),
        nested(27, "", "b || c && !a", ".a") + " == 1",
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_that_envoy_parses_are_accepted() {
        for text in READABLE {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        for (name, _) in FUNCTIONS {
            let call = format!("{name}(");
            assert!(READABLE.iter().any(|text| text.contains(&call)), "{name} is in no example");
        }
    }

    #[test]
    fn invalid_expressions_are_rejected_with_a_reason() {
        for (text, part) in UNREADABLE {
            let fact = check(text).expect_err(text);
            assert!(fact.contains(part), "{text}: {fact}");
        }
        for text in too_deep_for_envoys() {
            let fact = check(&text).expect_err(&text);
            assert!(fact.contains("deep"), "{text}: {fact}");
        }
        assert!(check(&format!("'{}'", "a".repeat(5000))).is_err());
    }

    #[test]
    fn maximum_depth_equals_that_of_envoy() {
        for text in as_deep_as_envoys_take() {
            assert_eq!(check(&text), Ok(()), "{text}");
        }
    }
}
