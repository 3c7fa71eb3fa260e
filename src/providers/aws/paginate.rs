//! Paginated listings, with rate limits and a page limit.

use std::error::Error;

use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_ec2::operation::RequestId;
use aws_smithy_async::future::pagination_stream::PaginationStream;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;

use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::{AwsError, MapAwsError};

/// Maximum page size of most EC2 listings.
pub(crate) const PAGE: i32 = 1000;
/// Maximum number of pages: 500,000 entries exceed every account.
const PAGES: usize = 500;

/// Reads all pages of a listing. Exceeding the page limit is an error, because a partial listing
/// must not count as complete.
pub(crate) async fn each<T, E>(
    account: &AwsClients,
    operation: &'static str,
    mut pages: PaginationStream<Result<T, SdkError<E, HttpResponse>>>,
    mut take: impl FnMut(T),
) -> Result<(), AwsError>
where
    E: ProvideErrorMetadata + Error + 'static,
    SdkError<E, HttpResponse>: RequestId,
{
    for _ in 0..PAGES {
        account.buckets.read.turn().await;
        let Some(page) = pages.next().await else {
            return Ok(());
        };
        take(page.map_aws_error(operation)?);
    }
    Err(AwsError::silent(operation, "the listing does not end"))
}
