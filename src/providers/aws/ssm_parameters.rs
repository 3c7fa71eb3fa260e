//! Reads SSM parameters for the configuration.

use std::time::Duration;

use aws_config::{BehaviorVersion, Region};
use aws_sdk_ssm::types::ParameterType;
use tokio::time::timeout;

use crate::config::settings::SsmOutput;
use crate::host::files::ParameterUnavailable;
use crate::providers::aws::clients::{AccountKey, AwsClients};
use crate::providers::aws::error::MapAwsError;
use crate::providers::aws::rate_limits::RateLimits;

/// Timeout of detecting the region of this host.
const LIMIT: Duration = Duration::from_secs(10);

/// Error codes of a parameter that does not exist or has an invalid name.
const NONE: &[&str] = &["ParameterNotFound", "ParameterVersionNotFound", "ValidationException"];

/// Returns the value of a parameter. Encrypted parameters are refused, because configuration values
/// are displayed.
pub(crate) async fn read_parameter(parameter: &SsmOutput) -> Result<String, ParameterUnavailable> {
    let region = match parameter.region.clone().or_else(|| {
        let arn = parameter.name.strip_prefix("arn:")?;
        arn.split(':').nth(2).map(str::to_owned)
    }) {
        Some(region) => region,
        None => own_region().await?,
    };
    let account = AwsClients::new(
        AccountKey { region, role: None, external_id: None },
        RateLimits::default(),
    )
    .await;
    let call = account.ssm.get_parameter().name(&parameter.name);
    let answer = call.send().await.map_aws_error("GetParameter");
    let answer = answer.map_err(|fault| ParameterUnavailable {
        is_retryable: !fault.has_code(NONE),
        why: fault.to_failure("ssm").text,
    })?;
    let why = match answer.parameter() {
        None => "the response contains none",
        Some(found) if found.r#type() == Some(&ParameterType::SecureString) => {
            "it is encrypted; use secret() because configuration values are displayed"
        }
        Some(found) => match found.value() {
            Some(value) => return Ok(value.to_owned()),
            None => "it is empty",
        },
    };
    Err(ParameterUnavailable { is_retryable: false, why: why.to_owned() })
}

/// The region from the environment, a profile or instance metadata.
async fn own_region() -> Result<String, ParameterUnavailable> {
    let load = aws_config::defaults(BehaviorVersion::latest()).load();
    let config = timeout(LIMIT, load).await.ok();
    let region = config.as_ref().and_then(|config| config.region().map(Region::to_string));
    region.ok_or_else(|| ParameterUnavailable {
        is_retryable: true,
        why: "it has no region and this host has no default; set region or AWS_REGION".into(),
    })
}
