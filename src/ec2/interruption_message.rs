//! Parses EventBridge messages about instances.
//!
//! Source: spec/aws.md §6.1 and §13.1; §13.1 describes the format of each body.

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use thiserror::Error;

use crate::model::id::InstanceId;
use crate::provider::Interruption;

/// Maximum body size of SQS.
pub const BODY_MAX: usize = 1 << 20;

/// Maximum number of instances in an AWS Health event. Valid events contain only a few.
pub const INSTANCES_MAX: usize = 1000;

/// Time between notice and interruption. Source: EC2 user guide.
const WARNING: SignedDuration = SignedDuration::from_mins(2);

/// A parsed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Instances are affected.
    Notice(InterruptionMessage),
    /// Not relevant for nodes.
    NoOp,
}

/// An event that affects instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterruptionMessage {
    /// Kind.
    pub what: Interruption,
    /// Instances, never empty.
    pub instances: Vec<InstanceId>,
    /// When AWS sent the message.
    pub said: Timestamp,
    /// When the event takes effect.
    pub at: Timestamp,
}

/// Why a body is invalid. Invalid messages are counted, logged once, and deleted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The body exceeds the size limit.
    #[error("{0} bytes exceed the size limit of a message")]
    Long(usize),
    /// The body is not JSON, or not an event.
    #[error("not an EventBridge event: {0}")]
    Json(String),
    /// The body lacks a required field.
    #[error("its detail has no {0}")]
    Lacks(&'static str),
}

#[derive(Deserialize)]
struct Envelope {
    version: String,
    source: String,
    #[serde(rename = "detail-type")]
    detail_type: String,
    /// Parsed leniently: a notice with an invalid time is still a notice.
    #[serde(default)]
    time: serde_json::Value,
    #[serde(default)]
    detail: serde_json::Value,
}

impl Envelope {
    /// Returns when AWS sent the message: now, if the time is invalid.
    fn sent(&self, now: Timestamp) -> Timestamp {
        self.time.as_str().and_then(|text| text.parse().ok()).unwrap_or(now)
    }
}

/// Parses a body received at `now`. Unknown kinds of events are not relevant for nodes.
pub fn parse_message(body: &str, now: Timestamp) -> Result<Message, Malformed> {
    if body.len() > BODY_MAX {
        return Err(Malformed::Long(body.len()));
    }
    let envelope: Envelope =
        serde_json::from_str(body).map_err(|fault| Malformed::Json(fault.to_string()))?;
    let kind = (envelope.version.as_str(), envelope.source.as_str(), envelope.detail_type.as_str());
    let what = match kind {
        ("0", "aws.ec2", "EC2 Spot Instance Interruption Warning") => Interruption::Spot,
        ("0", "aws.ec2", "EC2 Instance Rebalance Recommendation") => Interruption::Rebalance,
        ("0", "aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning") => {
            Interruption::Reservation
        }
        ("0", "aws.ec2", "EC2 Instance State-change Notification") => {
            let state = text_field(&envelope.detail, "state").ok_or(Malformed::Lacks("state"))?;
            let states = ["stopping", "stopped", "shutting-down", "terminated"];
            if !states.iter().any(|name| name.eq_ignore_ascii_case(state)) {
                return Ok(Message::NoOp);
            }
            Interruption::Stopping
        }
        ("0", "aws.health", "AWS Health Event") => return parse_health_event(&envelope, now),
        _ => return Ok(Message::NoOp),
    };
    let id = text_field(&envelope.detail, "instance-id").and_then(parse_instance_id);
    let id = id.ok_or(Malformed::Lacks("instance-id"))?;
    let sent = envelope.sent(now);
    let warned = matches!(what, Interruption::Spot | Interruption::Reservation);
    // Only warnings about reservations name the time.
    let named = text_field(&envelope.detail, "instance-termination-time");
    let at = named.and_then(|text| text.parse().ok()).or(sent.checked_add(WARNING).ok());
    let at = at.filter(|_| warned);
    Ok(Message::Notice(InterruptionMessage {
        what,
        instances: vec![id],
        said: sent,
        at: at.unwrap_or(sent),
    }))
}

/// In AWS Health events, only instance maintenance is relevant (spec §10, 94).
fn parse_health_event(envelope: &Envelope, now: Timestamp) -> Result<Message, Malformed> {
    let detail = &envelope.detail;
    if text_field(detail, "service") != Some("EC2")
        || text_field(detail, "eventTypeCategory") != Some("scheduledChange")
        || text_field(detail, "statusCode") == Some("closed")
    {
        return Ok(Message::NoOp);
    }
    let entities = detail.get("affectedEntities");
    let entities = entities.and_then(|entities| entities.as_array());
    // Entities may also be volumes and hosts.
    let instances: Vec<InstanceId> = entities
        .ok_or(Malformed::Lacks("affectedEntities"))?
        .iter()
        .filter_map(|entity| text_field(entity, "entityValue"))
        .filter_map(parse_instance_id)
        .take(INSTANCES_MAX)
        .collect();
    if instances.is_empty() {
        return Ok(Message::NoOp);
    }
    let sent = envelope.sent(now);
    Ok(Message::Notice(InterruptionMessage {
        what: Interruption::Maintenance,
        instances,
        said: sent,
        at: sent,
    }))
}

fn text_field<'v>(object: &'v serde_json::Value, key: &str) -> Option<&'v str> {
    object.get(key)?.as_str()
}

/// Parses an instance id: `i-` and letters or digits.
fn parse_instance_id(id: &str) -> Option<InstanceId> {
    const LENGTH_MAX: usize = 64;
    let rest = id.strip_prefix("i-")?;
    let plain = rest.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (plain && !rest.is_empty() && id.len() <= LENGTH_MAX).then(|| InstanceId::from(id))
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};
    use serde_json::{Value, json};

    use super::{BODY_MAX, Malformed, Message, parse_message};
    use crate::provider::Interruption;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;
    const SENT_AT: &str = "2026-01-01T00:00:00Z";
    const EC2: &str = "aws.ec2";
    const SPOT: &str = "EC2 Spot Instance Interruption Warning";
    const STATE: &str = "EC2 Instance State-change Notification";

    fn body(source: &str, kind: &str, detail: Value) -> String {
        let message = json!({
            "version": "0", "source": source, "detail-type": kind, "time": SENT_AT,
            "detail": detail,
        });
        message.to_string()
    }

    fn state(name: &str) -> Value {
        json!({ "instance-id": "i-1", "state": name })
    }

    fn health(service: &str, category: &str, entities: &[&str]) -> Value {
        let entity = |value: &&str| json!({ "entityValue": value });
        json!({
            "service": service, "eventTypeCategory": category, "eventTypeCode": "X",
            "affectedEntities": entities.iter().map(entity).collect::<Vec<_>>(),
        })
    }

    #[test]
    fn only_messages_about_instances_become_notices() {
        let one = json!({ "instance-id": "i-1", "instance-action": "terminate" });
        let reserved = "EC2 Capacity Reservation Instance Interruption Warning";
        let rebalance = "EC2 Instance Rebalance Recommendation";
        let health_event = "AWS Health Event";
        let change = "scheduledChange";
        let mut closed = health("EC2", change, &["i-1"]);
        closed["statusCode"] = json!("closed");
        let mut timed = one.clone();
        timed["instance-termination-time"] = json!("2026-01-01T00:30:00Z");
        use Interruption::{Maintenance, Rebalance, Reservation, Spot, Stopping};
        let cases = [
            (EC2, SPOT, one.clone(), Some((Spot, "i-1", 120))),
            (EC2, reserved, one.clone(), Some((Reservation, "i-1", 120))),
            (EC2, reserved, timed, Some((Reservation, "i-1", 1800))),
            (EC2, rebalance, one.clone(), Some((Rebalance, "i-1", 0))),
            (EC2, STATE, state("stopping"), Some((Stopping, "i-1", 0))),
            (EC2, STATE, state("Stopped"), Some((Stopping, "i-1", 0))),
            (EC2, STATE, state("shutting-down"), Some((Stopping, "i-1", 0))),
            (EC2, STATE, state("TERMINATED"), Some((Stopping, "i-1", 0))),
            (EC2, STATE, state("running"), None),
            (EC2, STATE, state("pending"), None),
            (
                "aws.health",
                health_event,
                health("EC2", change, &["i-1", "vol-1", "i-2"]),
                Some((Maintenance, "i-1 i-2", 0)),
            ),
            ("aws.health", health_event, closed, None),
            ("aws.health", health_event, health("EC2", "issue", &["i-1"]), None),
            ("aws.health", health_event, health("RDS", change, &["i-1"]), None),
            ("aws.health", health_event, health("EC2", change, &["vol-1"]), None),
            ("aws.s3", SPOT, one.clone(), None),
            (EC2, "EC2 Spot Instance Request Fulfillment", one, None),
        ];
        for (source, kind, detail, expect) in cases {
            let text = body(source, kind, detail);
            let found = match parse_message(&text, NOW).expect("a message") {
                Message::NoOp => None,
                Message::Notice(notice) => {
                    assert_eq!(notice.said.to_string(), SENT_AT);
                    let ids: Vec<&str> = notice.instances.iter().map(|id| id.as_str()).collect();
                    Some((notice.what, ids.join(" "), notice.at.duration_since(notice.said)))
                }
            };
            let expect = expect.map(|(what, ids, seconds)| {
                (what, ids.to_owned(), SignedDuration::from_secs(seconds))
            });
            assert_eq!(found, expect, "{text}");
        }
        let other = r#"{"version":"1","source":"aws.ec2","detail-type":"x","detail":3}"#;
        assert_eq!(parse_message(other, NOW), Ok(Message::NoOp));
    }

    #[test]
    fn notice_with_an_invalid_time_was_sent_now() {
        for time in [json!("yesterday"), json!(7), json!(null)] {
            let message = json!({
                "version": "0", "source": EC2, "detail-type": SPOT, "time": time,
                "detail": { "instance-id": "i-1" },
            });
            let parsed = parse_message(&message.to_string(), NOW).expect("a message");
            let Message::Notice(notice) = parsed else {
                panic!("{time}: {parsed:?}");
            };
            assert_eq!((notice.said, notice.at.as_second()), (NOW, 120), "{time}");
        }
    }

    #[test]
    fn malformed_messages_are_reported() {
        let bad = |detail| parse_message(&body(EC2, SPOT, detail), NOW);
        let lacks = Err(Malformed::Lacks("instance-id"));
        for detail in [
            json!({}),
            json!(null),
            json!({ "instance-id": 7 }),
            json!({ "instance-id": "i-" }),
            json!({ "instance-id": "i-1; rm" }),
            json!({ "instance-id": format!("i-{}", "a".repeat(100)) }),
        ] {
            assert_eq!(bad(detail), lacks);
        }
        assert_eq!(
            parse_message(&body(EC2, STATE, json!({ "instance-id": "i-1" })), NOW),
            Err(Malformed::Lacks("state"))
        );
        for text in ["", "hello", "[]", "{}", "{\"version\":0}", "null"] {
            assert!(matches!(parse_message(text, NOW), Err(Malformed::Json(_))), "{text}");
        }
        let deep = "[".repeat(100_000);
        assert!(matches!(parse_message(&deep, NOW), Err(Malformed::Json(_))));
        let long = " ".repeat(BODY_MAX + 1);
        assert_eq!(parse_message(&long, NOW), Err(Malformed::Long(BODY_MAX + 1)));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic() {
        let good = body(EC2, SPOT, json!({ "instance-id": "i-0123456789abcdef0" }));
        let mut rng = fastrand::Rng::with_seed(5);
        let mut parsed = 0;
        for _ in 0..20_000 {
            let mut bytes = good.clone().into_bytes();
            for _ in 0..rng.usize(0..4) {
                let at = rng.usize(0..bytes.len().max(1));
                bytes.resize(bytes.len().max(1), b'{');
                match rng.u8(0..4) {
                    0 => bytes[at] = rng.u8(..),
                    1 => drop(bytes.remove(at)),
                    2 => bytes.insert(at, rng.u8(..)),
                    _ => bytes.truncate(at.max(1)),
                }
            }
            let text = String::from_utf8_lossy(&bytes);
            if let Ok(Message::Notice(notice)) = parse_message(&text, NOW) {
                parsed += 1;
                assert!(notice.instances[0].as_str().starts_with("i-"));
            }
        }
        assert!((1000..20_000).contains(&parsed), "{parsed}");
    }
}
