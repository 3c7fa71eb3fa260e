//! SDK clients of an account and region, with rate limits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_config::sts::AssumeRoleProvider;
use aws_config::{AppName, BehaviorVersion, Region, SdkConfig};
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;
use tokio::sync::Mutex;

use crate::model::capacity_scope::CapacityScope;
use crate::model::cluster::Cluster;
use crate::outbound::clock_skew::SkewGauge;
use crate::providers::aws::interceptor::Recorder;
use crate::providers::aws::rate_limits::RateLimits;

/// Timeout of one call with all retries. Callers wait a little longer.
const CALL: Duration = Duration::from_secs(60);
/// Timeout of one attempt.
const ATTEMPT: Duration = Duration::from_secs(20);
/// Timeout of one CreateFleet call, which takes long if several offerings lack capacity.
const LAUNCH: Duration = Duration::from_secs(55);
/// Timeout of one receive call. SQS waits up to 20 s.
const POLL: Duration = Duration::from_secs(30);
/// Timeout of a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Attempts per call. The engine retries later after a new decision.
const ATTEMPTS: u32 = 3;

/// Application name in each request, visible in CloudTrail.
const APP: &str = "outrigger";

/// Identifies an account and region.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AccountKey {
    /// Region.
    pub(crate) region: String,
    /// Assumed role. `None` uses the identity of the daemon.
    pub(crate) role: Option<String>,
    /// External ID with which the role is assumed.
    pub(crate) external_id: Option<String>,
}

impl AccountKey {
    /// Account and region of a cluster's instances.
    pub(crate) fn from_cluster(cluster: &Cluster) -> Self {
        let role = cluster.role_arn.clone();
        // Without a role, nothing is assumed with the ID.
        let external_id = cluster.external_id.clone().filter(|_| role.is_some());
        Self { region: cluster.region.clone(), role, external_id }
    }

    /// Returns whether both are the same region and account, regardless of the role. EC2 rate
    /// limits and queues are shared per account and region. The account of the daemon's credentials
    /// is unknown here.
    pub(crate) fn is_same_account_and_region(&self, other: &Self) -> bool {
        let [this, other] =
            [self, other].map(|key| CapacityScope::from_region(&key.region, key.role.as_deref()));
        this == other
    }
}

/// Configuration for EC2 calls without retries.
pub(crate) fn without_retries() -> aws_sdk_ec2::config::Builder {
    aws_sdk_ec2::config::Builder::new().retry_config(RetryConfig::disabled())
}

/// Configuration for CreateFleet calls.
pub(crate) fn for_launches() -> aws_sdk_ec2::config::Builder {
    without_retries().timeout_config(timeouts_per_attempt(LAUNCH))
}

/// The client of an SDK crate, with this interceptor.
macro_rules! client {
    ($sdk:ident, $config:expr, $interceptor:expr) => {
        $sdk::Client::from_conf(
            $sdk::config::Builder::from($config).interceptor($interceptor).build(),
        )
    };
}

/// Clients of one account and region.
#[derive(Debug)]
pub(crate) struct AwsClients {
    pub(crate) key: AccountKey,
    pub(crate) config: SdkConfig,
    pub(crate) buckets: RateLimits,
    /// Clock skew between this host and AWS.
    pub(crate) skew: SkewGauge,
    pub(crate) ec2: aws_sdk_ec2::Client,
    pub(crate) shift: aws_sdk_arczonalshift::Client,
    pub(crate) eks: aws_sdk_eks::Client,
    pub(crate) iam: aws_sdk_iam::Client,
    pub(crate) pricing: aws_sdk_pricing::Client,
    pub(crate) sqs: aws_sdk_sqs::Client,
    pub(crate) ssm: aws_sdk_ssm::Client,
}

impl AwsClients {
    /// Creates the clients of an account and region, which assume the role if one is set. Sends
    /// nothing yet.
    pub(crate) async fn new(key: AccountKey, buckets: RateLimits) -> Self {
        let base = aws_config::defaults(BehaviorVersion::latest())
            .region(Region::new(key.region.clone()))
            // The adaptive retry mode is not used, because it applies one limit to all accounts of
            // the process. Each account and region has its own limits here.
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
            .timeout_config(timeouts_per_attempt(ATTEMPT))
            .load()
            .await;
        let base = with_app_name(base);
        let config = match &key.role {
            None => base,
            Some(role) => {
                let provider = AssumeRoleProvider::builder(role)
                    .configure(&base)
                    .session_name("outrigger")
                    .region(Region::new(key.region.clone()));
                let provider = match &key.external_id {
                    Some(id) => provider.external_id(id),
                    None => provider,
                };
                let provider = SharedCredentialsProvider::new(provider.build().await);
                base.into_builder().credentials_provider(provider).build()
            }
        };
        Self::with_limits(key, config, buckets)
    }

    /// Creates clients with this configuration and their own rate limits.
    #[cfg(test)]
    pub(crate) fn from_config(key: AccountKey, config: SdkConfig) -> Self {
        Self::with_limits(key, config, RateLimits::default())
    }

    fn with_limits(key: AccountKey, config: SdkConfig, buckets: RateLimits) -> Self {
        let config = with_app_name(config);
        let skew = SkewGauge::default();
        let (region, limits) = (key.region.clone(), buckets.clone());
        let recorder = Recorder { region, skew: skew.clone(), limits };
        // Without a price list, the client is not used.
        let priced = pricing_region(&key.region).unwrap_or(&key.region).to_owned();
        let pricing = aws_sdk_pricing::config::Builder::from(&config).region(Region::new(priced));
        Self {
            buckets,
            ec2: client!(aws_sdk_ec2, &config, recorder.clone()),
            shift: client!(aws_sdk_arczonalshift, &config, recorder.clone()),
            eks: client!(aws_sdk_eks, &config, recorder.clone()),
            iam: client!(aws_sdk_iam, &config, recorder.clone()),
            pricing: aws_sdk_pricing::Client::from_conf(
                pricing.interceptor(recorder.clone()).build(),
            ),
            sqs: aws_sdk_sqs::Client::from_conf(
                aws_sdk_sqs::config::Builder::from(&config)
                    .interceptor(recorder.clone())
                    .timeout_config(timeouts_per_attempt(POLL))
                    .build(),
            ),
            ssm: client!(aws_sdk_ssm, &config, recorder),
            config,
            skew,
            key,
        }
    }
}

fn with_app_name(config: SdkConfig) -> SdkConfig {
    let mut config = config.into_builder();
    config.set_app_name(AppName::new(APP).ok());
    config.build()
}

fn timeouts_per_attempt(attempt: Duration) -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(CONNECT)
        .operation_attempt_timeout(attempt)
        .operation_timeout(CALL)
        .build()
}

/// Returns the region whose pricing API has the prices of a region. The pricing API is available
/// only in few regions, and not for AWS GovCloud, the European Sovereign Cloud and the isolated
/// partitions, whose credentials the other partitions do not know. Source: spec/aws.md §4.8.
pub(crate) fn pricing_region(region: &str) -> Option<&'static str> {
    let mut parts = region.split('-');
    Some(match (parts.next()?, parts.next()?) {
        ("us", "gov" | "iso" | "isob" | "isof") | ("eu", "isoe") | ("eusc", _) => return None,
        ("ap", _) => "ap-south-1",
        ("cn", _) => "cn-northwest-1",
        ("eu", _) => "eu-central-1",
        _ => "us-east-1",
    })
}

/// All accounts and regions of clusters, each with shared clients.
#[derive(Debug, Default)]
pub(crate) struct Accounts(Mutex<BTreeMap<AccountKey, Arc<AwsClients>>>);

impl Accounts {
    /// Creates a set with these clients.
    #[cfg(test)]
    pub(crate) fn from_clients(account: AwsClients) -> Self {
        let known = BTreeMap::from([(account.key.clone(), Arc::new(account))]);
        Self(Mutex::new(known))
    }

    /// Returns the clients of an account and region.
    pub(crate) async fn get(&self, key: &AccountKey) -> Arc<AwsClients> {
        let mut known = self.0.lock().await;
        if let Some(account) = known.get(key) {
            return account.clone();
        }
        let neighbour = known.values().find(|it| it.key.is_same_account_and_region(key));
        let buckets = neighbour.map(|neighbour| neighbour.buckets.clone()).unwrap_or_default();
        let account = Arc::new(AwsClients::new(key.clone(), buckets).await);
        known.insert(key.clone(), account.clone());
        account
    }
}

#[cfg(test)]
mod tests {
    use super::{AccountKey, Accounts, pricing_region};

    fn key(region: &str, role: Option<&str>) -> AccountKey {
        AccountKey {
            region: region.to_owned(),
            role: role.map(|role| format!("arn:aws:iam::{role}")),
            external_id: None,
        }
    }

    #[tokio::test]
    async fn roles_of_one_account_and_region_share_rate_limits() {
        let accounts = Accounts::default();
        let one = accounts.get(&key("eu-west-1", Some("1:role/a"))).await;
        for (region, role, is_same) in [
            ("eu-west-1", Some("1:role/b"), true),
            ("eu-west-1", Some("2:role/a"), false),
            ("eu-west-2", Some("1:role/a"), false),
            ("eu-west-1", None, false),
        ] {
            let other = accounts.get(&key(region, role)).await;
            let is_one = one.buckets.read.shares_tokens_with(&other.buckets.read);
            assert_eq!(is_one, is_same, "{region} {role:?}");
        }
    }

    #[test]
    fn price_lists_are_read_from_a_serving_region() {
        for (region, expect) in [
            ("us-west-2", Some("us-east-1")),
            ("eu-north-1", Some("eu-central-1")),
            ("ap-southeast-2", Some("ap-south-1")),
            ("cn-north-1", Some("cn-northwest-1")),
            ("sa-east-1", Some("us-east-1")),
            ("us-gov-west-1", None),
            ("us-isof-south-1", None),
            ("eu-isoe-west-1", None),
            ("eusc-de-east-1", None),
        ] {
            assert_eq!(pricing_region(region), expect, "{region}");
        }
    }
}
