use regex_lite::Regex;
use serde_json::Value;

/// Why a value is not what a schema of this OpenAPI document says; checks all that ours use.
pub(crate) fn violation(document: &Value, schema: &Value, value: &Value) -> Option<String> {
    check(document, schema, value, "$").err()
}

fn check(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let wrong = |what: String| Err(format!("{at}: {what} in {value}"));
    for keyword in schema.as_object().into_iter().flatten().map(|(name, _)| name.as_str()) {
        if !KNOWN.contains(&keyword) {
            return wrong(format!("the check does not know {keyword}"));
        }
    }
    if let Some(name) = schema["$ref"].as_str() {
        let target = document.pointer(name.strip_prefix('#').unwrap_or(name));
        let target = target.ok_or_else(|| format!("{at}: {name} is not there"))?;
        check(document, target, value, at)?;
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let fitting =
            choices.iter().filter(|choice| check(document, choice, value, at).is_ok()).count();
        if fitting != 1 {
            return wrong(format!("{fitting} of oneOf fit"));
        }
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(some) => some.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !types.is_empty() && !types.iter().any(|name| is(name, value)) {
        return wrong(format!("not of type {types:?}"));
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        return wrong(format!("not one of {allowed:?}"));
    }
    let bounds = [("minimum", -1.0), ("maximum", 1.0)];
    for (name, sign) in bounds {
        if let (Some(bound), Some(number)) = (schema[name].as_f64(), value.as_f64())
            && (number - bound) * sign > 0.0
        {
            return wrong(format!("{name} {bound}"));
        }
    }
    if let Some(text) = value.as_str() {
        let length = text.chars().count() as u64;
        for (name, fits) in [
            ("minLength", schema["minLength"].as_u64().is_none_or(|least| length >= least)),
            ("maxLength", schema["maxLength"].as_u64().is_none_or(|most| length <= most)),
            ("pattern", schema["pattern"].as_str().is_none_or(|pattern| matches(pattern, text))),
        ] {
            if !fits {
                return wrong(name.to_owned());
            }
        }
    }
    if let Some(format) = schema["format"].as_str()
        && !is_formatted(format, value)
    {
        return wrong(format!("no {format}"));
    }
    for (index, one) in value.as_array().into_iter().flatten().enumerate() {
        if schema["items"].is_object() {
            check(document, &schema["items"], one, &format!("{at}[{index}]"))?;
        }
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value.get(name).is_none() {
            return wrong(format!("{name} is missing"));
        }
    }
    for (name, one) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(schema), _) => check(document, schema, one, &at)?,
            (None, Value::Bool(true)) => {}
            (None, others @ Value::Object(_)) => check(document, others, one, &at)?,
            // Ours have no members that they do not name.
            (None, Value::Bool(false)) => return wrong(format!("{name} is unknown")),
            (None, _) if schema["properties"].is_object() => {
                return wrong(format!("{name} is unknown"));
            }
            (None, _) => {}
        }
    }
    Ok(())
}

fn matches(pattern: &str, text: &str) -> bool {
    Regex::new(pattern).expect("a pattern").is_match(text)
}

/// What is not of the kind that a format is about is not its business.
fn is_formatted(format: &str, value: &Value) -> bool {
    match (format, value) {
        ("int32", Value::Number(number)) => {
            number.as_i64().is_some_and(|number| i32::try_from(number).is_ok())
        }
        ("int64", Value::Number(number)) => number.as_i64().is_some(),
        ("date-time", Value::String(text)) => is_time(text),
        ("int32" | "int64" | "date-time", _) => true,
        _ => panic!("the check does not know the format {format}"),
    }
}

/// By its shape, with leap seconds and whatever year: what is left to say is the server's business.
fn is_time(text: &str) -> bool {
    let number = |from: usize, to: usize| text.get(from..to).and_then(|it| it.parse::<u8>().ok());
    let is = |at: usize, byte: u8| text.as_bytes().get(at) == Some(&byte);
    let bytes = text.as_bytes();
    let day = text.get(..4).is_some_and(|year| year.bytes().all(|byte| byte.is_ascii_digit()))
        && is(4, b'-')
        && number(5, 7).is_some_and(|month| (1..=12).contains(&month))
        && is(7, b'-')
        && number(8, 10).is_some_and(|day| (1..=31).contains(&day));
    let time = bytes.get(10).is_some_and(|byte| b"Tt ".contains(byte))
        && number(11, 13).is_some_and(|hour| hour < 24)
        && is(13, b':')
        && number(14, 16).is_some_and(|minute| minute < 60)
        && is(16, b':')
        && number(17, 19).is_some_and(|second| second <= 60);
    let rest = text.get(19..).unwrap_or_default();
    let fraction =
        rest.strip_prefix('.').map(|it| it.trim_start_matches(|c: char| c.is_ascii_digit()));
    let zone = fraction.unwrap_or(rest);
    let offset = zone.strip_prefix(['+', '-']).and_then(|offset| offset.split_once(':'));
    let is_two = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    day && time
        && (zone.eq_ignore_ascii_case("z")
            || offset.is_some_and(|(hours, minutes)| is_two(hours) && is_two(minutes)))
}

fn is(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => false,
    }
}

const KNOWN: [&str; 17] = [
    "$ref",
    "additionalProperties",
    "default",
    "description",
    "enum",
    "format",
    "items",
    "maxLength",
    "maximum",
    "minLength",
    "minimum",
    "oneOf",
    "pattern",
    "properties",
    "required",
    "title",
    "type",
];

#[test]
fn the_check_of_schemas_finds_what_is_wrong() {
    use serde_json::json;
    let document = json!({ "components": { "schemas": { "Word": { "type": "string" } } } });
    let schema = json!({
        "type": "object",
        "required": ["a"],
        "properties": {
            "a": { "$ref": "#/components/schemas/Word" },
            "b": { "type": ["integer", "null"], "minimum": 1, "maximum": 3 },
            "c": { "type": "array", "items": { "enum": ["x"] } },
            "d": { "type": "string", "minLength": 1, "maxLength": 3 },
            "e": { "type": "string", "format": "date-time" },
            "f": { "type": ["integer", "null"], "format": "int32" },
            "g": { "type": "object", "additionalProperties": { "type": "integer" } },
            "h": { "type": "string", "pattern": "^([A-Za-z0-9_.-]{1,64} )?[!-~]{1,255}$" },
            "i": { "type": "integer", "format": "int64" },
        },
    });
    let good = json!({
        "a": "w", "b": 3, "c": ["x", "x"], "d": "\u{e4}\u{f6}\u{fc}", "e": "2026-01-01T00:00:00.5Z",
        "f": null, "g": { "any": 1 }, "h": "stripe ch_1", "i": -1,
    });
    assert_eq!(violation(&document, &schema, &good), None);
    for bad in [
        json!([]),
        json!({}),
        json!({ "a": 1 }),
        json!({ "a": "w", "b": 4 }),
        json!({ "a": "w", "b": 0 }),
        json!({ "a": "w", "c": ["x", "y"] }),
        json!({ "a": "w", "more": 1 }),
        json!({ "a": "w", "d": "" }),
        json!({ "a": "w", "d": "four" }),
        json!({ "a": "w", "e": "yesterday" }),
        json!({ "a": "w", "e": "2026-13-01T00:00:00Z" }),
        json!({ "a": "w", "e": "2026-01-01T00:00:00" }),
        json!({ "a": "w", "f": 2_147_483_648_u32 }),
        json!({ "a": "w", "g": { "any": "1" } }),
        json!({ "a": "w", "h": "two words here" }),
        json!({ "a": "w", "h": "" }),
        json!({ "a": "w", "i": u64::MAX }),
    ] {
        assert!(violation(&document, &schema, &bad).is_some(), "{bad}");
    }
}
