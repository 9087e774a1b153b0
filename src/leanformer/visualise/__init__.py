"""visualise"""
