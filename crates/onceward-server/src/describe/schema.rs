//! The file as a JSON Schema, made of the types that read it.

use serde_json::Value;

use crate::config::File;

pub(crate) fn schema() -> Value {
    let mut schema = schemars::schema_for!(File).to_value();
    without_null(&mut schema);
    schema
}

/// A key that need not be there is left out in TOML, which has no null.
fn without_null(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if let Some(Value::Array(types)) = members.get_mut("type") {
                types.retain(|name| name != "null");
                if let [only] = &mut types[..] {
                    let only = only.take();
                    members.insert("type".to_owned(), only);
                }
            }
            if members.get("default").is_some_and(Value::is_null) {
                members.remove("default");
            }
            members.values_mut().for_each(without_null);
        }
        Value::Array(items) => items.iter_mut().for_each(without_null),
        _ => {}
    }
}
