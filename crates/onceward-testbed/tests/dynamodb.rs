//! The emulator of DynamoDB, as tests start and break it.

use std::net::TcpStream;

use onceward_testbed::DynamoDb;

const TABLE: &str = r#"{"TableName": "kept", "BillingMode": "PAY_PER_REQUEST",
    "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}],
    "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}]}"#;

#[test]
fn a_killed_emulator_has_its_tables_again_if_it_keeps_them_in_a_file() {
    for (mut server, keeps) in [(DynamoDb::start(), true), (DynamoDb::start_in_memory(), false)] {
        assert!(server.call("CreateTable", TABLE).contains("\"TableName\":\"kept\""));
        server.kill_9();
        assert!(TcpStream::connect(server.address()).is_err(), "it is gone");
        server.start_again();
        assert_eq!(server.call("ListTables", "{}").contains("\"kept\""), keeps);
    }
}
