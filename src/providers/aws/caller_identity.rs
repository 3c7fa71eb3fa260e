//! The AWS identity of the daemon.

use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::{AwsError, MapAwsError};
use crate::providers::aws::interceptor::Recorder;

/// The ARN of the caller, which contains the account.
pub(crate) async fn caller_arn(account: &AwsClients) -> Result<String, AwsError> {
    let region = account.key.region.clone();
    let config = aws_sdk_sts::config::Builder::from(&account.config);
    let (skew, limits) = (account.skew.clone(), account.buckets.clone());
    let config = config.interceptor(Recorder { region, skew, limits }).build();
    let sts = aws_sdk_sts::Client::from_conf(config);
    let answer = sts.get_caller_identity().send().await;
    let arn = answer.map_aws_error("GetCallerIdentity")?.arn;
    arn.ok_or_else(|| AwsError::without_response("GetCallerIdentity", "the response has no ARN"))
}
