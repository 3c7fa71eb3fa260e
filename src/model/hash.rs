//! Hashes that outlive a process: what a pool's or node class's nodes were made from.
//! It must not know what is done when they differ.

use std::fmt::Write;

use crate::model::node_class::NodeClass;
use crate::model::pool::Pool;

/// FNV-1a over text: std's hasher may change with the compiler, tags must not.
fn fnv1a(text: &str) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    text.bytes().fold(OFFSET, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(PRIME)
    })
}

/// Hash of what a pool writes on its nodes, `v1:…`; requirements are compared on their own.
/// The version names the fields that count: another set of fields is another version.
pub fn pool_hash(pool: &Pool) -> String {
    let mut text = String::new();
    let mut field = |name: &str, value: &dyn std::fmt::Debug| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name}={value:?}");
    };
    let list = |taints: &[crate::model::taint::Taint]| -> Vec<String> {
        taints.iter().map(ToString::to_string).collect()
    };
    field("labels", &pool.labels);
    field("annotations", &pool.annotations);
    field("taints", &list(&pool.taints));
    field("startup_taints", &list(&pool.startup_taints));
    field(
        "node_class",
        &pool.node_class.as_ref().map(|class| class.as_str()),
    );
    field("expire_after", &pool.expire_after.map(|d| d.as_secs()));
    field(
        "termination_grace_period",
        &pool.termination_grace_period.map(|d| d.as_secs()),
    );
    format!("v1:{:016x}", fnv1a(&text))
}

/// Hash of a node class, `v1:…`; `v1:none` where there is none.
pub fn node_class_hash(class: Option<&NodeClass>) -> String {
    class.map_or("v1:none".to_owned(), |class| {
        let text = format!(
            "identity={:?}\nuser_data={:?}",
            class.identity, class.user_data
        );
        format!("v1:{:016x}", fnv1a(&text))
    })
}
