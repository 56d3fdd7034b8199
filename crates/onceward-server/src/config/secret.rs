//! Strings of the config file, with `${env:NAME}` and `${file:PATH}` replaced, so that secrets need
//! not stand in it.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};

/// A string value. `Debug` shows nothing of it, since any of them may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Text(String);

impl Text {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Text(..)")
    }
}

impl JsonSchema for Text {
    fn schema_name() -> Cow<'static, str> {
        "Text".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = String::deserialize(deserializer)?;
        expand(&written).map(Text).map_err(de::Error::custom)
    }
}

/// Replaces each reference by what it stands for.
fn expand(written: &str) -> Result<String, String> {
    let mut expanded = String::with_capacity(written.len());
    let mut rest = written;
    while let Some((before, reference)) = rest.split_once("${") {
        let (reference, after) = reference
            .split_once('}')
            .ok_or_else(|| "a `${` is not closed with a `}`".to_owned())?;
        expanded.push_str(before);
        expanded.push_str(&look_up(reference)?);
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

fn look_up(reference: &str) -> Result<String, String> {
    match reference.split_once(':') {
        Some(("env", name)) => std::env::var(name).map_err(|_| {
            format!("the environment variable {name} is not set, and `${{env:{name}}}` needs it")
        }),
        Some(("file", path)) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("`${{file:{path}}}` cannot be read: {error}"))?;
            // Editors end files with a line break that is no part of the secret.
            Ok(text.strip_suffix('\n').unwrap_or(&text).trim_end_matches('\r').to_owned())
        }
        _ => Err(format!("`${{{reference}}}` is neither `${{env:NAME}}` nor `${{file:PATH}}`")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn text_without_references_stays_as_it_is() {
        for text in ["", "plain", "costs $5", "a } b", "{x}"] {
            assert_eq!(expand(text).as_deref(), Ok(text));
        }
    }

    #[test]
    fn a_file_is_read_without_its_last_line_break() {
        let mut file = tempfile::NamedTempFile::new().expect("temporary file");
        file.write_all(b"s3cret\n").expect("written");
        let reference = format!("a-${{file:{}}}-b", file.path().display());
        assert_eq!(expand(&reference).as_deref(), Ok("a-s3cret-b"));
    }

    #[test]
    fn what_cannot_be_replaced_is_an_error_that_names_it() {
        for (text, part) in [
            ("${env:ONCEWARD_NOT_SET_ANYWHERE}", "ONCEWARD_NOT_SET_ANYWHERE"),
            ("${file:/does/not/exist}", "/does/not/exist"),
            ("${vault:x}", "neither"),
            ("${env:HOME", "not closed"),
        ] {
            let error = expand(text).expect_err(text);
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn an_environment_variable_is_replaced() {
        let path = std::env::var("PATH").expect("every process has a PATH");
        assert_eq!(expand("${env:PATH}"), Ok(path));
    }
}
