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
        match schema["properties"].get(name) {
            Some(schema) => check(document, schema, one, &format!("{at}.{name}"))?,
            None if schema["properties"].is_object() => return wrong(format!("{name} is unknown")),
            None => {}
        }
    }
    Ok(())
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
        },
    });
    let good = json!({ "a": "w", "b": 3, "c": ["x", "x"] });
    assert_eq!(violation(&document, &schema, &good), None);
    for bad in [
        json!([]),
        json!({}),
        json!({ "a": 1 }),
        json!({ "a": "w", "b": 4 }),
        json!({ "a": "w", "b": 0 }),
        json!({ "a": "w", "c": ["x", "y"] }),
        json!({ "a": "w", "more": 1 }),
    ] {
        assert!(violation(&document, &schema, &bad).is_some(), "{bad}");
    }
}
