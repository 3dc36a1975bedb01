# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of schedules: what examples demand, and where everything lies."""
