//! Calls of the interruption queue, one per account and region for all clusters.

use std::time::Duration;

use aws_sdk_sqs::types::{Message, MessageSystemAttributeName};

use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::{AwsError, MapAwsError};

/// Maximum number of messages per receive call.
const MESSAGES: i32 = 10;
/// Maximum long polling time of SQS.
const WAIT: i32 = 20;
/// Visibility timeout of a received message.
pub(crate) const VISIBILITY: Duration = Duration::from_secs(20);

/// Returns the URL of a queue, by name or URL.
pub(crate) async fn queue_url(account: &AwsClients, queue: &str) -> Result<String, AwsError> {
    if queue.starts_with("https://") || queue.starts_with("http://") {
        return Ok(queue.to_owned());
    }
    let answer = account.sqs.get_queue_url().queue_name(queue).send().await;
    let url = answer.map_aws_error("GetQueueUrl")?.queue_url;
    url.ok_or_else(|| AwsError::without_response("GetQueueUrl", "the response contains no queue"))
}

/// Receives messages.
pub(crate) async fn receive_messages(
    account: &AwsClients,
    url: &str,
) -> Result<Vec<Message>, AwsError> {
    let answer = account
        .sqs
        .receive_message()
        .queue_url(url)
        .max_number_of_messages(MESSAGES)
        .wait_time_seconds(WAIT)
        .visibility_timeout(seconds(VISIBILITY))
        .message_system_attribute_names(MessageSystemAttributeName::ApproximateReceiveCount)
        .send()
        .await;
    let answer = answer.map_aws_error("ReceiveMessage")?;
    Ok(answer.messages.unwrap_or_default())
}

/// Deletes an accepted message.
pub(crate) async fn delete_message(
    account: &AwsClients,
    url: &str,
    message: &Message,
) -> Result<(), AwsError> {
    let receipt = message.receipt_handle().unwrap_or_default();
    let call = account.sqs.delete_message().queue_url(url);
    let answer = call.receipt_handle(receipt).send().await;
    answer.map_aws_error("DeleteMessage").map(drop)
}

/// Sets after which time a received message is visible again.
pub(crate) async fn change_visibility(
    account: &AwsClients,
    url: &str,
    message: &Message,
    after: Duration,
) -> Result<(), AwsError> {
    let receipt = message.receipt_handle().unwrap_or_default();
    let call = account.sqs.change_message_visibility().queue_url(url);
    let call = call.receipt_handle(receipt).visibility_timeout(seconds(after));
    let answer = call.send().await;
    answer.map_aws_error("ChangeMessageVisibility").map(drop)
}

/// Returns how often SQS has delivered a message, this time included: 1 if SQS returns no count.
pub(crate) fn receive_count(message: &Message) -> u32 {
    let attributes = message.attributes();
    let count =
        attributes.and_then(|all| all.get(&MessageSystemAttributeName::ApproximateReceiveCount));
    count.and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn seconds(span: Duration) -> i32 {
    i32::try_from(span.as_secs()).unwrap_or(i32::MAX)
}
