//! Whether this role may do what the store does. It is tried, on an item that is never there, under a
//! condition that never holds: who may not is told so before anybody looks.

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata, SdkError},
    types::{AttributeValue, ConditionCheck, KeysAndAttributes, TransactWriteItem},
};

use super::{BY_DUE, BY_LISTED, Finding, Inner};
use crate::store::dynamodb::item::{key, text};

const NAME: &str = "permissions";

/// No item is there without it.
const IS_THERE: &str = "attribute_exists(pk)";

pub(super) async fn permissions(inner: &Inner) -> Finding {
    match missing(inner).await {
        Ok(missing) if missing.is_empty() => Finding::ok(NAME, "all that the store needs"),
        Ok(missing) => Finding::broken(
            NAME,
            format!("missing: {}", missing.join(", ")),
            "grant them to the role, on the table and on its indexes",
        ),
        Err(why) => Finding::failed(NAME, why),
    }
}

/// What is missing, as `dynamodb:PutItem`.
async fn missing(inner: &Inner) -> Result<Vec<String>, String> {
    let never = || key("meta", "permissions");
    let (client, table) = (&inner.client, &inner.table);
    let mut missing = Vec::new();
    let mut tried = |what: &str, allowed: bool| {
        if !allowed {
            missing.push(format!("dynamodb:{what}"));
        }
    };
    let get = client.get_item().table_name(table).set_key(Some(never())).send().await;
    tried("GetItem", allowed(get)?);
    let keys = KeysAndAttributes::builder().keys(never()).build().map_err(|it| it.to_string())?;
    let many = client.batch_get_item().request_items(table, keys).send().await;
    tried("BatchGetItem", allowed(many)?);
    let item = Some(never());
    let put = client.put_item().table_name(table).set_item(item).condition_expression(IS_THERE);
    tried("PutItem", allowed(put.send().await)?);
    let update = client.update_item().table_name(table).set_key(Some(never()));
    let update = update.update_expression("SET tried = :one").condition_expression(IS_THERE);
    let update = update.expression_attribute_values(":one", AttributeValue::N("1".into()));
    tried("UpdateItem", allowed(update.send().await)?);
    let delete = client.delete_item().table_name(table).set_key(Some(never()));
    tried("DeleteItem", allowed(delete.condition_expression(IS_THERE).send().await)?);
    let check = ConditionCheck::builder().table_name(table).set_key(Some(never()));
    let check = check.condition_expression(IS_THERE).build().map_err(|it| it.to_string())?;
    let both = TransactWriteItem::builder().condition_check(check).build();
    let both = client.transact_write_items().transact_items(both).send().await;
    tried("ConditionCheckItem", allowed(both)?);
    for (index, part) in [(None, "pk"), (Some(BY_DUE), "due"), (Some(BY_LISTED), "listed")] {
        let query = client.query().table_name(table).set_index_name(index.map(str::to_owned));
        let query = query.key_condition_expression("#part = :nobody").limit(1);
        let query = query.expression_attribute_names("#part", part);
        let query = query.expression_attribute_values(":nobody", text("permissions"));
        let what = index.map_or("Query".to_owned(), |index| format!("Query on {index}"));
        tried(&what, allowed(query.send().await)?);
    }
    Ok(missing)
}

/// Whether the service let a call come so far that it looked at what it is about.
fn allowed<T, E>(answer: Result<T, SdkError<E>>) -> Result<bool, String>
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let said = match answer {
        Ok(_) => return Ok(true),
        Err(SdkError::ServiceError(said)) => said.into_err(),
        Err(error) => return Err(error.to_string()),
    };
    match said.code() {
        Some("AccessDeniedException") => Ok(false),
        Some("ConditionalCheckFailedException" | "TransactionCanceledException") => Ok(true),
        code => Err(code.unwrap_or("the service gives no reason").to_owned()),
    }
}
