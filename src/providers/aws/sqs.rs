//! The queue in which AWS tells of interruptions: one for an account and region, whoever's cluster
//! an instance is in. It must not know what a message means, nor whom it is for.

use aws_sdk_sqs::types::Message;

use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::AwsError;

/// Messages of one answer, the most that SQS gives.
const MESSAGES: i32 = 10;
/// How long SQS waits for a message, the most that it does.
const WAIT: i32 = 20;
/// How long a message is nobody else's.
const VISIBILITY: i32 = 20;

/// The URL of a queue, which may be given by name.
pub(crate) async fn url(account: &AwsClients, queue: &str) -> Result<String, AwsError> {
    if queue.starts_with("https://") || queue.starts_with("http://") {
        return Ok(queue.to_owned());
    }
    let answer = account.sqs.get_queue_url().queue_name(queue).send().await;
    let answer = answer.map_err(|error| AwsError::new("GetQueueUrl", error))?;
    let named = answer.queue_url().map(str::to_owned);
    named.ok_or_else(|| AwsError::silent("GetQueueUrl", "the answer names no queue"))
}

/// Waits for messages.
pub(crate) async fn receive(account: &AwsClients, url: &str) -> Result<Vec<Message>, AwsError> {
    let answer = account
        .sqs
        .receive_message()
        .queue_url(url)
        .max_number_of_messages(MESSAGES)
        .wait_time_seconds(WAIT)
        .visibility_timeout(VISIBILITY)
        .send()
        .await;
    let answer = answer.map_err(|error| AwsError::new("ReceiveMessage", error))?;
    Ok(answer.messages.unwrap_or_default())
}

/// A message has been taken in.
pub(crate) async fn delete(
    account: &AwsClients,
    url: &str,
    message: &Message,
) -> Result<(), AwsError> {
    let receipt = message.receipt_handle().unwrap_or_default();
    let call = account.sqs.delete_message().queue_url(url);
    let answer = call.receipt_handle(receipt).send().await;
    answer
        .map(drop)
        .map_err(|error| AwsError::new("DeleteMessage", error))
}

/// A message is for another host: it may have it at once.
pub(crate) async fn give_back(
    account: &AwsClients,
    url: &str,
    message: &Message,
) -> Result<(), AwsError> {
    let receipt = message.receipt_handle().unwrap_or_default();
    let call = account.sqs.change_message_visibility().queue_url(url);
    let answer = call
        .receipt_handle(receipt)
        .visibility_timeout(0)
        .send()
        .await;
    answer
        .map(drop)
        .map_err(|error| AwsError::new("ChangeMessageVisibility", error))
}
