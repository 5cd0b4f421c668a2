//! Walks through JSON that is known to be JSON, for lists of which all is read and little kept.
//!
//! Checks types, not syntax: serde has seen to that. What nobody asks for is stepped over without
//! recursion, text by looking for its end.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::text::Raw;
use super::wire::Malformed;

/// A place in JSON.
#[derive(Debug, Clone, Copy)]
pub struct Walk<'a> {
    rest: &'a [u8],
}

impl<'a> Walk<'a> {
    /// At the beginning.
    pub fn through(json: &'a RawValue) -> Self {
        Self { rest: json.get().as_bytes() }
    }

    /// Goes through a list: `item` takes each value.
    ///
    /// # Errors
    /// It is none, or those of `item`.
    pub fn list(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.enter(b'[', "what should be a list is none")?;
        while self.goes_on() {
            item(self)?;
        }
        Ok(())
    }

    /// Goes through an object: `field` is told each name and takes the value, or skips it.
    ///
    /// # Errors
    /// It is none, or those of `field`.
    pub fn object(
        &mut self,
        mut field: impl FnMut(&[u8], &mut Self) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.enter(b'{', "what should be an object is none")?;
        while self.goes_on() {
            let name = self.text()?;
            self.space();
            self.step(1);
            field(&name, self)?;
        }
        Ok(())
    }

    /// Takes `null`, if it is here.
    pub fn null(&mut self) -> bool {
        self.space();
        let is_null = self.rest.starts_with(b"null");
        if is_null {
            self.step(4);
        }
        is_null
    }

    /// Takes text; `null` is empty text.
    ///
    /// # Errors
    /// It is neither.
    pub fn text(&mut self) -> Result<Raw<'a>, Malformed> {
        self.space();
        let Some(inside) = self.rest.strip_prefix(b"\"") else {
            return if self.null() { Ok(Raw::default()) } else { Err(NO_TEXT) };
        };
        let plain = memchr::memchr2(b'"', b'\\', inside).unwrap_or(inside.len());
        let (text, after) = inside.split_at(plain);
        if let [b'"', after @ ..] = after {
            self.rest = after;
            return Ok(Raw::from(Cow::Borrowed(text)));
        }
        let whole = self.rest;
        self.skip_text();
        let (text, _) = whole.split_at(whole.len() - self.rest.len());
        let text = serde_json::from_slice::<String>(text).map_err(|_| NO_TEXT)?;
        Ok(Raw::from(Cow::Owned(text.into_bytes())))
    }

    /// Takes `true` or `false`; `None` is `null`.
    ///
    /// # Errors
    /// It is none of them.
    pub fn flag(&mut self) -> Result<Option<bool>, Malformed> {
        if self.null() {
            return Ok(None);
        }
        let (flag, length) = match self.rest {
            [b't', ..] => (true, 4),
            [b'f', ..] => (false, 5),
            _ => return Err(Malformed("what should be true or false is neither")),
        };
        self.step(length);
        Ok(Some(flag))
    }

    /// Steps over a value.
    pub fn skip(&mut self) {
        let mut depth = 0_usize;
        loop {
            self.space();
            match self.rest {
                [] => return,
                [b'"', ..] => self.skip_text(),
                [b'{' | b'[', ..] => {
                    depth += 1;
                    self.step(1);
                    continue;
                }
                [b'}' | b']', ..] => {
                    depth = depth.saturating_sub(1);
                    self.step(1);
                }
                [b',' | b':', ..] => {
                    self.step(1);
                    continue;
                }
                _ => {
                    let is_end = |byte: &u8| b",:]} \n\r\t".contains(byte);
                    self.step(self.rest.iter().position(is_end).unwrap_or(self.rest.len()));
                }
            }
            if depth == 0 {
                return;
            }
        }
    }

    fn enter(&mut self, open: u8, fact: &'static str) -> Result<(), Malformed> {
        self.space();
        self.rest = self.rest.strip_prefix(&[open]).ok_or(Malformed(fact))?;
        Ok(())
    }

    /// Whether there is one more in what is gone through; steps to it, or behind the end.
    fn goes_on(&mut self) -> bool {
        self.space();
        match self.rest {
            [b',', after @ ..] => {
                self.rest = after;
                true
            }
            [b']' | b'}', after @ ..] => {
                self.rest = after;
                false
            }
            rest => !rest.is_empty(),
        }
    }

    fn space(&mut self) {
        while let [b' ' | b'\n' | b'\r' | b'\t', after @ ..] = self.rest {
            self.rest = after;
        }
    }

    /// Steps over text, which is here.
    fn skip_text(&mut self) {
        self.step(1);
        while let Some(at) = memchr::memchr2(b'"', b'\\', self.rest) {
            let is_end = self.rest.get(at) == Some(&b'"');
            self.step(if is_end { at + 1 } else { at + 2 });
            if is_end {
                return;
            }
        }
        self.rest = &[];
    }

    fn step(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }
}

const NO_TEXT: Malformed = Malformed("what should be text is none");

#[cfg(test)]
mod tests {
    use super::*;

    /// Says what a list of objects holds, of which `a` is text, `b` a flag and the rest nobody's.
    fn said(json: &str) -> Result<String, Malformed> {
        let json: &RawValue = serde_json::from_str(json).expect("it is JSON");
        let mut said = String::new();
        Walk::through(json).list(|walk| {
            said.push('|');
            walk.object(|name, walk| {
                match name {
                    b"a" => said.push_str(&String::from_utf8_lossy(&walk.text()?)),
                    b"b" => said.push_str(&format!("{:?}", walk.flag()?)),
                    _ => walk.skip(),
                }
                Ok(())
            })
        })?;
        Ok(said)
    }

    #[test]
    fn what_is_asked_for_is_found_behind_whatever_is_skipped() {
        let skipped = [
            "1",
            "-1.5e3",
            "\"x\"",
            r#""]}\"\\""#,
            "null",
            "[]",
            "{}",
            "[[],{\"a\":[\"]\"]},1]",
            " [ 1 , \"a\" ] ",
            r#"{"a":"b","c":{"b":true}}"#,
        ];
        for value in skipped {
            for json in [
                format!(r#"[{{"x":{value},"a":"y","b":true}},{{"b":null,"a":null}}]"#),
                format!(
                    " [ {{ \"x\" : {value} , \"a\" : \"y\" , \"b\" : true , \"z\" : {value} }} , {{ \"b\" : null }} ] "
                ),
            ] {
                assert_eq!(said(&json).as_deref(), Ok("|ySome(true)|None"), "{json}");
            }
        }
        assert_eq!(said("[]").as_deref(), Ok(""));
        assert_eq!(said(r#"[{},{"\u0061":"\u00fc\"\\\n"}]"#).as_deref(), Ok("||ü\"\\\n"));
    }

    #[test]
    fn other_types_than_asked_for_are_errors() {
        for json in ["{}", "[1]", "[null]", r#"[{"a":1}]"#, r#"[{"b":"x"}]"#, r#"[{"a":["x"]}]"#] {
            assert!(said(json).is_err(), "{json}");
        }
    }

    #[test]
    fn depth_is_no_attack() {
        let depth = 100_000;
        let json = format!(r#"[{{"x":{}{},"a":"y"}}]"#, "[".repeat(depth), "]".repeat(depth));
        assert_eq!(said(&json).as_deref(), Ok("|y"));
    }
}
