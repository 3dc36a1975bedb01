# SPDX-License-Identifier: Apache-2.0
"""Examples kept, traced and put together to batches."""
